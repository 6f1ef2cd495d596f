"""start: leases whose handlers have begun."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.reports import done_of, numbered, references
from leasemill.store.postgres.wire.arrays import int8s
from leasemill.store.postgres.wire.connections import Connection


def start(database: Database, connection: Connection, reports: Sequence[c.StartReport]) -> dict[str, c.StartOutcome]:
    found = numbered(database, connection, reports)
    given = {**references(found), "ages": int8s([report.age_us for report in found.values()])}
    return {
        report.job_id: c.Started(report.job_id) for report in done_of(database.one(connection, "start", given), found)
    }
