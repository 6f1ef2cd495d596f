"""nack: failures that are retried."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.kernel.transitions.retry import LONGEST_EXPONENT
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.rows.values import UNWRITTEN_TERMS
from leasemill.store.postgres.steps import Steps, Verb, rows
from leasemill.store.postgres.verbs.reports import known_reports, references, report


def nack(context: VerbContext, command: c.Nack) -> Verb[list[c.NackOutcome]]:
    outcomes = yield from report(context, command.reports, _nack, c.Nack)
    yield from context.wake_if_moved()
    return outcomes


def _nack(known: Known, reports: Sequence[c.NackReport]) -> Steps[dict[str, c.NackOutcome]]:
    found = known_reports(known, [report for report in reports if not (report.is_permanent or report.keep_lease)])
    if not found:
        return {}
    given = {
        **references(found),
        "errors": [report.error for report in found.values()],
        "jitters": [repr(report.jitter) for report in found.values()],
        "delays": [report.delay_us for report in found.values()],
        "longest_exponent": LONGEST_EXPONENT,
        "unwritten": UNWRITTEN_TERMS,
    }
    retried = yield from rows("nack", given)
    known.has_moved_jobs |= bool(retried)
    known.positions.lower((queue, rank, at, seq) for _, _, at, queue, rank, seq in retried)
    return {
        (job_id := found[no].job_id): c.Nacked(job_id, JobState.READY, retries, at) for no, retries, at, *_ in retried
    }
