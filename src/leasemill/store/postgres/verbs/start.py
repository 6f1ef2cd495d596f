"""start: leases whose handlers have begun."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.steps import Steps, Verb, row
from leasemill.store.postgres.verbs.reports import answered, known_reports, references, report


def start(context: VerbContext, command: c.Start) -> Verb[list[c.StartOutcome]]:
    return report(context, command.reports, _start, c.Start)


def _start(known: Known, reports: Sequence[c.StartReport]) -> Steps[dict[str, c.StartOutcome]]:
    found = known_reports(known, reports)
    if not found:
        return {}
    given = {**references(found), "ages": [report.age_us for report in found.values()]}
    started = answered((yield from row("start", given)), found)
    return {report.job_id: c.Started(report.job_id) for report in started}
