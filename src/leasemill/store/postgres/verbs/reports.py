"""Reports on leases: in one statement where a lease was granted here; what that leaves over is decided by the kernel.

Every report names its lease by token, and every statement checks it against the row: what this process remembers only
chooses the statement. A lease that is not held as the report says is left over, and so is the refusal, which only the
exact path records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import LeaseReport
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.decide import LockSet, decide
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.steps import Row, Steps, TransactionAttempt, Verb, transact

ReportT = TypeVar("ReportT", bound=LeaseReport)
FastPath: TypeAlias = Callable[[Known, Sequence[Any]], Steps[Mapping[str, Any]]]
"""The outcomes of the reports it could answer, by their jobs."""
REPORTS_AT_ONCE: Final = 2_000


def report(
    context: VerbContext,
    reports: Sequence[ReportT],
    fast: FastPath,
    make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
) -> Verb[list[Any]]:
    """One outcome for each report. `make`: the command, of those that are left to the kernel."""
    outcomes: list[Any] = []
    for first in range(0, len(reports), REPORTS_AT_ONCE):
        outcomes += yield from _report(context, reports[first : first + REPORTS_AT_ONCE], fast, make)
    return outcomes


def _report(
    context: VerbContext,
    reports: Sequence[ReportT],
    fast: FastPath,
    make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
) -> Verb[list[Any]]:
    # Two transactions at most. The fast one answers what is plain, in one message; what it leaves over, in their order,
    # is decided by the kernel on rows under locks. Between the two others may report on the same leases, so the second
    # asks nothing of the first. A report whose answer was lost is sent again: what then looks like a repeat by the
    # caller (L6) may be our own first attempt, and is answered as new.
    known = context.known
    firsts: dict[str, int] = {}
    for index, one in enumerate(reports):
        firsts.setdefault(one.job_id, index)  # E6: the fast path takes the first report on each job
    once = [reports[index] for index in firsts.values()]
    may_have_happened = False

    def on_fast_path(attempt: TransactionAttempt) -> Steps[Mapping[str, Any]]:
        nonlocal may_have_happened
        may_have_happened |= attempt.may_have_happened
        return fast(known, once)

    are_known = not known.leases.keys().isdisjoint(one.token for one in once)
    done = (yield from transact(on_fast_path)) if are_known else {}
    if len(done) == len(reports):
        return [done[one.job_id] for one in reports]
    outcomes = {firsts[job_id]: outcome for job_id, outcome in done.items()}
    rest = [one for index, one in enumerate(reports) if index not in outcomes]

    def on_exact_path(attempt: TransactionAttempt) -> Steps[list[Any]]:
        nonlocal may_have_happened
        may_have_happened |= attempt.may_have_happened
        return decide(known, make(rest), LockSet([one.job_id for one in rest]))

    decided = yield from transact(on_exact_path)
    yield from context.follow_decision()
    if may_have_happened:  # an answer was lost: what looks like the caller's repeat is our own
        decided = [replace(one, is_repeat=False) if getattr(one, "is_repeat", False) else one for one in decided]
    following = iter(decided)
    return [outcomes[index] if index in outcomes else next(following) for index in range(len(reports))]


def known_reports(known: Known, reports: Sequence[ReportT]) -> dict[int, ReportT]:
    """The reports on leases granted here, by their jobs' numbers, ascending.

    Statements find what belongs to a row by `width_bucket(no, nos)`, which needs the numbers in order.
    """
    found: dict[int, ReportT] = {}
    for report in reports:
        lease = known.leases.get(report.token)
        if lease is not None and lease.job_id == report.job_id:
            found[lease.no] = report
    return {no: found[no] for no in sorted(found)}


def references(found: Mapping[int, Any]) -> dict[str, Any]:
    return {"nos": list(found), "tokens": [report.token for report in found.values()]}


def answered(row: Row, found: Mapping[int, ReportT]) -> Iterable[ReportT]:
    """All of the reports, or those that the statement names."""
    count, nos, *_ = row
    return found.values() if count == len(found) else [found[no] for no in nos or ()]
