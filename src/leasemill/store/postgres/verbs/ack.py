"""ack: leases that end DONE, all or none in one message; of heads of lanes, the next jobs of their lanes become heads.

Where all of the reports are on leases that were granted here and nothing else depends on their ends, two statements are
all: `ack`, which fails if one of the leases is not held, and `advance` for the lanes. Members of groups are counted by
`ack_members`, which also fails if a group may be over with them. Whatever fails or was not tried is decided by the
kernel on the exact path, in the order of the reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import psycopg
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known, LeaseInfo
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, Message, Row, Steps, Verb
from leasemill.store.postgres.verbs.reports import REPORTS_AT_ONCE, known_reports, references, report

Lane = tuple[str, str]
"""A queue and a lane in it."""
MAY_BE_OVER: Final = "LM002"
"""The SQLSTATE of `ack_members` where a group may be over."""
NOT_HELD: Final = "LM004"
"""The SQLSTATE of `ack` where a lease is not held."""


def ack(context: VerbContext, command: c.Ack, *, may_have_happened: bool = False) -> Verb[list[c.AckOutcome]]:
    """`may_have_happened`: it was sent before, so what looks like a repeat may be our own."""
    limits = _limits_of(context.known, command.reports)
    outcomes = yield from report(context, command.reports, _ack, c.Ack)
    if may_have_happened:
        outcomes = [one if isinstance(one, c.Lost) else replace(one, is_repeat=False) for one in outcomes]
    if any(isinstance(one, c.Acked) for one in outcomes):
        context.signal.notify()
    yield from context.free_limits(limits)
    return outcomes


def _limits_of(known: Known, reports: Sequence[c.AckReport]) -> set[str]:
    """The names of the limits under which these leases were granted, as far as they were granted here."""
    if not known.limited_queues:
        return set()
    leases = [known.leases.get(one.token) for one in reports]
    return {name for one in leases if one is not None for name in one.limits}


def _ack(known: Known, reports: Sequence[c.AckReport]) -> Steps[dict[str, c.AckOutcome]]:
    found = _plain_ends(known, known_reports(known, reports), len(reports))
    leases = {no: known.leases[one.token] for no, one in found.items()}
    forget(known, found.values())  # an attempt after this one is the exact path's
    if not found:
        return {}
    members = {no: one for no, one in found.items() if leases[no].group is not None}
    others = {no: one for no, one in found.items() if no not in members}
    lanes = [(one.queue, one.lane) for one in leases.values() if one.lane is not None]
    heads = given_lanes(lanes)
    statements: list[Execute] = []
    if others:
        statements.append(Execute("ack", parameters(others, heads)))
    if lanes:  # N4: in a statement after the one that waited for the lanes' locks, so that who lined up is seen
        statements.append(Execute("advance", heads))
    if members:
        groups = [leases[no].group for no in members]
        statements.append(Execute("ack_members", {**parameters(members, NO_LANES), "group_ids": groups}))
    message: Message = tuple(statements) if len(statements) == 1 else (BEGIN, *statements, COMMIT)
    try:
        answers = yield message
    except psycopg.Error as error:
        if error.sqlstate not in {NOT_HELD, MAY_BE_OVER}:
            raise
        return {}  # E6: a repeat among them shows who was next before the others ended
    hints = _advanced(known, answers[2 if others else 1]) if lanes else {}
    return {one.job_id: c.Acked(one.job_id, hints.get((one.queue, one.lane))) for one in leases.values()}


def _plain_ends(known: Known, found: dict[int, c.AckReport], count: int) -> dict[int, c.AckReport]:
    """B2, B6: what an end causes is decided by the kernel. E6: so are then, in order, other ends that free a unique key
    that it may take; and other heads, if that may be in a lane: each outcome shows who is next in turn."""
    leases = known.leases
    left = [one for report in found.values() if (one := leases[report.token]).causes]
    if not left and len(found) == count and not any(leases[report.token].group for report in found.values()):
        return found
    are_lanes_left = len(found) < count or any(one.lane is not None for one in left)
    return {
        no: report
        for no, report in found.items()
        if not ((one := leases[report.token]).causes or one.has_key) and (one.lane is None or not are_lanes_left)
    }


def _advanced(known: Known, rows: Sequence[Row]) -> dict[tuple[str, str | None], c.LaneHint]:
    """By queue and lane, the new heads that `advance` returned. It is committed."""
    known.positions.lower((queue, rank, at, seq) for queue, _, _, rank, at, seq in rows)
    return {(queue, lane): c.LaneHint(job_id, None) for queue, lane, job_id, *_ in rows}


def forget(known: Known, reports: Iterable[c.AckReport]) -> None:
    """Forget the leases of these reports: if the fast path leaves a report over, the exact path decides it."""
    for one in reports:
        known.leases.pop(one.token, None)


class PlainLeases(NamedTuple):
    """Reports on leases of which nothing but their own ends, and those of their lanes, depends."""

    found: dict[int, c.AckReport]
    leases: dict[str, LeaseInfo]
    """By job, in the order of the reports."""

    @property
    def lanes(self) -> list[Lane]:
        return [(one.queue, one.lane) for one in self.leases.values() if one.lane is not None]

    def outcomes(self, hints: Mapping[tuple[str, str | None], c.LaneHint]) -> list[c.AckOutcome]:
        return [c.Acked(one.job_id, hints.get((one.queue, one.lane))) for one in self.leases.values()]


def plain_leases(known: Known, reports: Sequence[c.AckReport]) -> PlainLeases | None:
    """All of the reports; None if one of them is not plain, or not known."""
    found = known_reports(known, reports)
    if not 0 < len(found) == len(reports) <= REPORTS_AT_ONCE:
        return None
    leases = {one.job_id: known.leases[one.token] for one in reports}
    if any(one.causes or one.group is not None or one.limits for one in leases.values()):
        return None
    return PlainLeases(found, leases)


def parameters(found: dict[int, c.AckReport], heads: dict[str, object]) -> dict[str, object]:
    """`heads`: the lanes of those that are heads, as `given_lanes` has them."""
    results = [one.result for one in found.values()]
    return {
        **references(found),
        **heads,
        "results": results if any(result is not None for result in results) else None,
    }


def given_lanes(lanes: Sequence[Lane]) -> dict[str, object]:
    return {"lane_queues": [queue for queue, _ in lanes], "lanes": [lane for _, lane in lanes]}


NO_LANES: Final = given_lanes([])
