"""release: jobs that are given back."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.reports import known, references, report
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Release) -> list[c.ReleaseOutcome]:
    outcomes = report(calls, command.reports, release, c.Release)
    calls.wake()
    return outcomes


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
