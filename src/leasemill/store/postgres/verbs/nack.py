"""nack: failures that are retried."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.kernel.transitions.retry import LONGEST_EXPONENT
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.claim import UNWRITTEN_TERMS
from leasemill.store.postgres.verbs.reports import known, references, report
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Nack) -> list[c.NackOutcome]:
    outcomes = report(calls, command.reports, nack, c.Nack)
    calls.wake()
    return outcomes


def nack(database: Database, connection: Connection, reports: Sequence[c.NackReport]) -> dict[str, c.NackOutcome]:
    retried = [report for report in reports if not (report.is_permanent or report.keep_lease)]
    if not retried:
        return {}
    found = known(database, retried)
    if not found:
        return {}
    given = {
        **references(found),
        "errors": texts([report.error for report in found.values()]),
        "jitters": texts([repr(report.jitter) for report in found.values()]),
        "delays": int8s([report.delay_us for report in found.values()]),
        "longest_exponent": int8(LONGEST_EXPONENT),
        "unwritten": UNWRITTEN_TERMS,
    }
    rows = database.all(connection, "nack", given)
    database.positions.lower((queue, rank, at, seq) for _, _, at, queue, rank, seq in rows)
    return {(job_id := found[no].job_id): c.Nacked(job_id, JobState.READY, retries, at) for no, retries, at, *_ in rows}
