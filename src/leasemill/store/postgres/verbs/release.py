"""release: jobs that are given back."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.limits import hold
from leasemill.store.postgres.verbs.reports import known, references, report
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Release) -> list[c.ReleaseOutcome]:
    holding = {one.token: one for one in command.reports if one.limit is not None}
    if holding:
        return _run_holding(calls, command, holding)
    outcomes = report(calls, command.reports, release, c.Release)
    calls.wake()
    return outcomes


def _run_holding(calls: Calls, command: c.Release, holding: dict[str, c.ReleaseReport]) -> list[c.ReleaseOutcome]:
    """T13. The rate is held with the release; where the kernel decides on the release, right after it."""
    done: set[str] = set()

    def fast(
        database: Database, connection: Connection, reports: Sequence[c.ReleaseReport]
    ) -> dict[str, c.ReleaseOutcome]:
        with connection.transaction():
            hold.lock(database, connection, reports)
            outcomes = release(database, connection, reports)
            held = [one for one in reports if one.job_id in outcomes and one.limit is not None]
            hold.hold(database, connection, held)
        done.update(one.token for one in held)
        return outcomes

    outcomes = report(calls, command.reports, fast, c.Release)
    left = [
        one
        for one, outcome in zip(command.reports, outcomes, strict=True)
        if one.token in holding and one.token not in done and isinstance(outcome, c.Released) and not outcome.is_repeat
    ]
    if left:
        calls.connections.run(lambda connection: _hold(calls.database, connection, left))
    calls.wake()
    return outcomes


def _hold(database: Database, connection: Connection, reports: Sequence[c.ReleaseReport]) -> None:
    with connection.transaction():
        hold.lock(database, connection, reports)
        hold.hold(database, connection, reports)


def release(
    database: Database, connection: Connection, reports: Sequence[c.ReleaseReport]
) -> dict[str, c.ReleaseOutcome]:
    found = known(database, reports)
    if not found:
        return {}
    given = {
        **references(found),
        "delays": int8s([report.delay_us for report in found.values()]),
        "errors": texts([report.error for report in found.values()]),
    }
    rows = database.all(connection, "release", given)
    database.positions.lower((queue, rank, at, seq) for _, queue, rank, at, seq in rows)
    return {(job_id := found[no].job_id): c.Released(job_id, JobState.READY) for no, *_ in rows}
