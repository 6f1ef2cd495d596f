"""extend: a full lease from now."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.claim import UNWRITTEN_TERMS
from leasemill.store.postgres.verbs.reports import known, references, report
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Extend) -> list[c.ExtendOutcome]:
    return report(calls, command.leases, extend, c.Extend)


def extend(database: Database, connection: Connection, leases: Sequence[c.LeaseRef]) -> dict[str, c.ExtendOutcome]:
    found = known(database, leases)
    if not found:
        return {}
    rows = database.all(connection, "extend", {**references(found), "unwritten": UNWRITTEN_TERMS})
    return {(job_id := found[no].job_id): c.Extended(job_id, until) for no, until in rows}
