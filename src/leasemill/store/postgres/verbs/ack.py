"""ack: leases that end DONE. Of jobs without lanes in one statement; of heads of lanes in a transaction, where the next
jobs of their lanes become heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, Held
from leasemill.store.postgres.verbs.reports import answered, known, limits_of, references, report
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import encoded, texts
from leasemill.store.postgres.wire.connections import Connection

MAY_BE_OVER: Final = "LM002"
"""The SQLSTATE of `ack_members` where a group may be over."""
NOT_HELD: Final = "LM004"
"""The SQLSTATE of `ack_all` where a lease is not held."""


def run(calls: Calls, command: c.Ack) -> list[c.AckOutcome]:
    limits = limits_of(calls.database, command.reports)
    outcomes = report(calls, command.reports, ack, c.Ack)
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
        row = database.one(connection, "ack", parameters(plain, []))
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
        row = database.one(connection, "ack_members", {**parameters(members, []), "group_ids": groups})
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
    """N4. The line is read by a statement of its own, after the one that waited for the lanes' locks."""
    lanes = [(held[no].queue, held[no].lane or "") for no in found]
    statements = [
        batch.BEGIN,
        database.sent("ack_all", parameters(found, lanes)),
        database.sent("advance", given_lanes(lanes)),
        batch.COMMIT,
    ]
    try:
        with batch.transaction(connection):
            _, _, rows, _ = batch.run(connection, *statements)
    except psycopg.Error as error:
        if error.sqlstate != NOT_HELD:
            raise
        return {}  # E6: a repeat among them shows who was next before the others ended
    database.positions.lower((queue, rank, at, seq) for queue, _, _, rank, at, seq in rows)
    heads = {(queue, lane): c.LaneHint(job_id, None) for queue, lane, job_id, *_ in rows}
    return {
        report.job_id: c.Acked(report.job_id, heads.get(lane))
        for report, lane in zip(found.values(), lanes, strict=True)
    }


def parameters(found: dict[int, c.AckReport], lanes: list[tuple[str, str]]) -> dict[str, object]:
    results = [report.result for report in found.values()]
    return {
        **references(found),
        **given_lanes(lanes),
        "results": encoded(results) if any(result is not None for result in results) else None,
    }


def given_lanes(lanes: list[tuple[str, str]]) -> dict[str, object]:
    return {"queues": texts([queue for queue, _ in lanes]), "lanes": texts([lane for _, lane in lanes])}
