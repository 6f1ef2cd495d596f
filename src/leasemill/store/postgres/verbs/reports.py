"""Reports on leases: on the fast path, in one statement, and on the exact path what that leaves over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import LeaseReport
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Row

ReportT = TypeVar("ReportT", bound=LeaseReport)
FastPath = Callable[[Database, Connection, Sequence[Any]], Mapping[str, Any]]
"""The outcomes of the reports it could answer, by their jobs."""
REPORTS_AT_ONCE: Final = 2_000


def report(
    calls: Calls,
    reports: Sequence[ReportT],
    fast: FastPath,
    make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
) -> list[Any]:
    """One outcome for each report. `make`: the command, of those that are left to the kernel."""
    outcomes: list[Any] = []
    for first in range(0, len(reports), REPORTS_AT_ONCE):
        outcomes += _report(calls, reports[first : first + REPORTS_AT_ONCE], fast, make)
    return outcomes


def _report(
    calls: Calls,
    reports: Sequence[ReportT],
    fast: FastPath,
    make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
) -> list[Any]:
    database = calls.database
    firsts: dict[str, int] = {}
    for index, one in enumerate(reports):
        firsts.setdefault(one.job_id, index)  # E6: the fast path takes the first report on each job
    once, rest = [reports[index] for index in firsts.values()], list[ReportT]()
    fast_tries, exact_tries = 0, 0

    def on_fast_path(connection: Connection) -> Mapping[str, Any]:
        nonlocal fast_tries
        fast_tries += 1
        return fast(database, connection, once)

    def on_exact_path(connection: Connection) -> list[Any]:
        nonlocal exact_tries
        exact_tries += 1
        try:
            return decide(database, connection, make(rest), Concern([one.job_id for one in rest]))
        except BaseException:
            if not connection.closed:  # an answer, and nothing was committed: the next try is the first
                exact_tries -= 1
            raise

    are_known = not database.leases.keys().isdisjoint(one.token for one in once)
    done = calls.connections.run(on_fast_path) if are_known else {}
    if len(done) == len(reports):
        return [done[one.job_id] for one in reports]
    outcomes = {firsts[job_id]: outcome for job_id, outcome in done.items()}
    rest += [one for index, one in enumerate(reports) if index not in outcomes]
    decided = calls.connections.run(on_exact_path)
    calls.follow_decision()
    if fast_tries > 1 or exact_tries > 1:  # a reply was lost: what looks like the caller's repeat is our own
        decided = [replace(one, is_repeat=False) if getattr(one, "is_repeat", False) else one for one in decided]
    following = iter(decided)
    return [outcomes[index] if index in outcomes else next(following) for index in range(len(reports))]


def known(database: Database, reports: Sequence[ReportT]) -> dict[int, ReportT]:
    """The reports on leases granted here, by their jobs' numbers, ascending.

    Statements find what belongs to a row by `width_bucket(no, nos)`, which needs the numbers in order.
    """
    found: dict[int, ReportT] = {}
    for report in reports:
        held = database.leases.get(report.token)
        if held is not None and held.job_id == report.job_id:
            found[held.no] = report
    return {no: found[no] for no in sorted(found)}


def limits_of(database: Database, reports: Sequence[ReportT]) -> set[str]:
    """The names of the limits of which these leases hold places, as far as they were granted here."""
    if not database.limited_queues:
        return set()
    held = [database.leases.get(report.token) for report in reports]
    return {name for one in held if one is not None for name in one.limits}


def references(found: Mapping[int, Any]) -> dict[str, Any]:
    return {"nos": int8s(list(found)), "tokens": texts([report.token for report in found.values()])}


def answered(row: Row, found: Mapping[int, ReportT]) -> Iterable[ReportT]:
    """All of the reports, or those that the statement names."""
    count, nos, *_ = row
    return found.values() if count == len(found) else [found[no] for no in nos or ()]
