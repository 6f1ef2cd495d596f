"""ack: leases that end DONE. Of jobs without lanes in one statement; of heads of lanes in a transaction, where the next
jobs of their lanes become heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import psycopg
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, Held
from leasemill.store.postgres.verbs.reports import (
    REPORTS_AT_ONCE,
    answered,
    known,
    limits_of,
    references,
    report,
)
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import encoded, texts
from leasemill.store.postgres.wire.batch import Sent
from leasemill.store.postgres.wire.connections import Connection, Row
from leasemill.store.postgres.wire.looped import LoopMessages, MessageFailed

Ended: TypeAlias = list[c.AckOutcome]
MAY_BE_OVER: Final = "LM002"
"""The SQLSTATE of `ack_members` where a group may be over."""
NOT_HELD: Final = "LM004"
"""The SQLSTATE of `ack_all` where a lease is not held."""


async def arun(calls: Calls, messages: LoopMessages, command: c.Ack) -> Ended | Callable[[], Ended]:
    """Sent by the event loop itself, as far as nothing is special. What it returns otherwise is to be called in a
    thread."""
    outcomes: Ended = []
    parts = [command.reports[at : at + REPORTS_AT_ONCE] for at in range(0, len(command.reports), REPORTS_AT_ONCE)]
    for number, part in enumerate(parts, 1):
        ended = await _arun(calls, messages, part)
        if callable(ended):
            return partial(_finished, calls, outcomes, ended, [one for rest in parts[number:] for one in rest])
        outcomes += ended
    return outcomes


def _finished(calls: Calls, before: Ended, special: Callable[[], Ended], rest: list[c.AckReport]) -> Ended:
    """E6: one after the other."""
    return [*before, *special(), *(run(calls, c.Ack(rest)) if rest else ())]


async def _arun(calls: Calls, messages: LoopMessages, reports: Sequence[c.AckReport]) -> Ended | Callable[[], Ended]:
    database, command = calls.database, c.Ack(reports)
    found = known(database, reports)
    held = {report.job_id: database.leases[report.token] for report in found.values()}
    if len(found) < len(reports) or any(one.causes or one.group is not None or one.limits for one in held.values()):
        return partial(run, calls, command)
    lanes = [(one.queue, one.lane) for one in held.values() if one.lane is not None]
    match await messages.ask(_ending_all(database, found, lanes)):
        case None:
            return partial(run, calls, command)
        case MessageFailed() as failed:
            return partial(run, calls, command, was_lost=failed.is_lost)
        case answers:
            heads = _new_heads(database, answers[2]) if lanes else {}
    for one in reports:
        database.leases.pop(one.token, None)
    calls.signal.notify()
    if not heads:
        return [c.Acked(report.job_id) for report in reports]
    ended = [held[report.job_id] for report in reports]
    return [c.Acked(one.job_id, heads.get((one.queue, one.lane))) for one in ended]


def run(calls: Calls, command: c.Ack, *, was_lost: bool = False) -> list[c.AckOutcome]:
    """`was_lost`: it was sent before, so what looks like a repeat may be our own."""
    limits = limits_of(calls.database, command.reports)
    outcomes = report(calls, command.reports, ack, c.Ack)
    if was_lost:
        outcomes = [one if isinstance(one, c.Lost) else replace(one, is_repeat=False) for one in outcomes]
    if any(isinstance(one, c.Acked) for one in outcomes):
        calls.signal.notify()
    if limits:
        calls.free_places(limits)
    return outcomes


def ack(database: Database, connection: Connection, reports: Sequence[c.AckReport]) -> dict[str, c.AckOutcome]:
    found = _plain_ends(database, known(database, reports), len(reports))
    held = {no: database.leases.pop(report.token) for no, report in found.items()}
    plain = {no: report for no, report in found.items() if held[no].lane is None and held[no].group is None}
    outcomes: dict[str, c.AckOutcome] = {}
    if plain:
        row = database.one(connection, "ack", parameters(plain, NO_LANES))
        outcomes = {report.job_id: c.Acked(report.job_id) for report in answered(row, plain)}
    if len(plain) < len(found):
        heads = {no: report for no, report in found.items() if held[no].lane is not None}
        if heads:
            outcomes |= _ack_heads(database, connection, heads, held)
        if len(plain) + len(heads) < len(found):
            outcomes |= _ack_members(database, connection, found, held)
    return outcomes


def _ack_members(
    database: Database, connection: Connection, found: dict[int, c.AckReport], held: dict[int, Held]
) -> dict[str, c.AckOutcome]:
    """B1: counted with their ends. B2: if one of the groups may be over with them, the kernel decides on all."""
    members = {no: report for no, report in found.items() if held[no].group is not None}
    groups = texts([held[no].group for no in members])
    try:
        row = database.one(connection, "ack_members", {**parameters(members, NO_LANES), "group_ids": groups})
    except psycopg.Error as error:
        if error.sqlstate != MAY_BE_OVER:
            raise
        return {}
    return {report.job_id: c.Acked(report.job_id) for report in answered(row, members)}


def _plain_ends(database: Database, found: dict[int, c.AckReport], count: int) -> dict[int, c.AckReport]:
    """B2, B6: what an end causes is decided by the kernel. E6: so are then, in order, other ends that free a unique key
    that it may take; and other heads, if that may be in a lane: each outcome shows who is next in turn."""
    leases = database.leases
    left = [one for report in found.values() if (one := leases[report.token]).causes]
    if not left and len(found) == count and not any(leases[report.token].group for report in found.values()):
        return found
    are_lanes_left = len(found) < count or any(one.lane is not None for one in left)
    return {
        no: report
        for no, report in found.items()
        if not ((one := leases[report.token]).causes or one.has_key) and (one.lane is None or not are_lanes_left)
    }


def _ack_heads(
    database: Database, connection: Connection, found: dict[int, c.AckReport], held: dict[int, Held]
) -> dict[str, c.AckOutcome]:
    lanes = [(held[no].queue, held[no].lane or "") for no in found]
    try:
        with batch.transaction(connection):
            _, _, rows, _ = batch.run(connection, *_ending_all(database, found, lanes))
    except psycopg.Error as error:
        if error.sqlstate != NOT_HELD:
            raise
        return {}  # E6: a repeat among them shows who was next before the others ended
    heads = _new_heads(database, rows)
    return {
        report.job_id: c.Acked(report.job_id, heads.get(lane))
        for report, lane in zip(found.values(), lanes, strict=True)
    }


def _ending_all(database: Database, found: dict[int, c.AckReport], lanes: list[tuple[str, str]]) -> list[Sent]:
    """N4. The line is read by a statement of its own, after the one that waited for the lanes' locks."""
    heads = given_lanes(lanes)
    ends = database.sent("ack_all", parameters(found, heads))
    return [batch.BEGIN, ends, database.sent("advance", heads), batch.COMMIT] if lanes else [ends]


def _new_heads(database: Database, rows: Sequence[Row]) -> dict[tuple[str, str | None], c.LaneHint]:
    """By queue and lane. It is committed."""
    database.positions.lower((queue, rank, at, seq) for queue, _, _, rank, at, seq in rows)
    return {(queue, lane): c.LaneHint(job_id, None) for queue, lane, job_id, *_ in rows}


def parameters(found: dict[int, c.AckReport], heads: dict[str, object]) -> dict[str, object]:
    """`heads`: the lanes of those that are heads, as `given_lanes` has them."""
    results = [report.result for report in found.values()]
    return {
        **references(found),
        **heads,
        "results": encoded(results) if any(result is not None for result in results) else None,
    }


def given_lanes(lanes: list[tuple[str, str]]) -> dict[str, object]:
    return {"lane_queues": texts([queue for queue, _ in lanes]), "lanes": texts([lane for _, lane in lanes])}


NO_LANES: Final = given_lanes([])
