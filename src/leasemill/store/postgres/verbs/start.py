"""start: leases whose handlers have begun."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.reports import answered, known, references, report
from leasemill.store.postgres.wire.arrays import int8s
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Start) -> list[c.StartOutcome]:
    return report(calls, command.reports, start, c.Start)


def start(database: Database, connection: Connection, reports: Sequence[c.StartReport]) -> dict[str, c.StartOutcome]:
    found = known(database, reports)
    if not found:
        return {}
    given = {**references(found), "ages": int8s([report.age_us for report in found.values()])}
    return {
        report.job_id: c.Started(report.job_id) for report in answered(database.one(connection, "start", given), found)
    }
