"""release: jobs that are given back."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.limits.operate import hold_rates, lock_held
from leasemill.store.postgres.steps import Steps, Verb, rows, transact, transaction
from leasemill.store.postgres.verbs.reports import known_reports, references, report


def release(context: VerbContext, command: c.Release) -> Verb[list[c.ReleaseOutcome]]:
    holding = {one.token for one in command.reports if one.limit is not None}
    held: set[str] = set()

    def fast(known: Known, reports: Sequence[c.ReleaseReport]) -> Steps[dict[str, c.ReleaseOutcome]]:
        if not holding:
            return (yield from _release(known, reports))
        return (yield from transaction(_release_and_hold(known, reports, held)))

    outcomes = yield from report(context, command.reports, fast, c.Release)
    left = [
        one
        for one, outcome in zip(command.reports, outcomes, strict=True)
        if one.token in holding - held and isinstance(outcome, c.Released) and not outcome.is_repeat
    ]
    if left:  # T13: where the kernel decided on the release, its limit is held right after it
        yield from transact(lambda _: transaction(_hold(context.known, left)))
    yield from context.wake_if_moved()
    return outcomes


def _release_and_hold(
    known: Known, reports: Sequence[c.ReleaseReport], held: set[str]
) -> Steps[dict[str, c.ReleaseOutcome]]:
    """T13: the limits that are held up are locked before anything else. `held`: the tokens of those it held."""
    yield from lock_held(reports)
    outcomes = yield from _release(known, reports)
    done = [one for one in reports if one.job_id in outcomes and one.limit is not None]
    yield from hold_rates(known, done)
    held.update(one.token for one in done)
    return outcomes


def _hold(known: Known, reports: Sequence[c.ReleaseReport]) -> Steps[None]:
    yield from lock_held(reports)
    yield from hold_rates(known, reports)


def _release(known: Known, reports: Sequence[c.ReleaseReport]) -> Steps[dict[str, c.ReleaseOutcome]]:
    found = known_reports(known, reports)
    if not found:
        return {}
    given = {
        **references(found),
        "delays": [report.delay_us for report in found.values()],
        "errors": [report.error for report in found.values()],
    }
    released = yield from rows("release", given)
    known.has_moved_jobs |= bool(released)
    known.positions.lower((queue, rank, at, seq) for _, queue, rank, at, seq in released)
    return {(job_id := found[no].job_id): c.Released(job_id, JobState.READY) for no, *_ in released}
