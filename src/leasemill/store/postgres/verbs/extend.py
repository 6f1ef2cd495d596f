"""extend: a full lease from now."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.rows.values import UNWRITTEN_TERMS
from leasemill.store.postgres.steps import Steps, Verb, rows
from leasemill.store.postgres.verbs.reports import known_reports, references, report


def extend(context: VerbContext, command: c.Extend) -> Verb[list[c.ExtendOutcome]]:
    return report(context, command.leases, _extend, c.Extend)


def _extend(known: Known, leases: Sequence[c.LeaseRef]) -> Steps[dict[str, c.ExtendOutcome]]:
    found = known_reports(known, leases)
    if not found:
        return {}
    extended = yield from rows("extend", {**references(found), "unwritten": UNWRITTEN_TERMS})
    return {(job_id := found[no].job_id): c.Extended(job_id, until) for no, until in extended}
