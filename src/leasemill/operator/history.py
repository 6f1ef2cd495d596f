"""The history of a job: earlier attempts, refused reports, mismatches, what operators did. Pure.

A worker that claims a job of a kind it does not declare, or with arguments that do not fit its handler, releases it and
records why (F8). A deployment ends such a mismatch; how long to wait for one is decided by the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leasemill.kernel.model import AbortReason, Execution, Job, JobState, Verb
from leasemill.kernel.read.filter import last_error
from leasemill.operator.facts import JobFacts
from leasemill.operator.fingerprint import NO_ERROR
from leasemill.operator.wording import counted, instant, times

ENDS_SHOWN: Final = 10
"""Earlier attempts that are listed one by one; of more, the first and the latest."""


def history(facts: JobFacts) -> Iterator[str]:
    job = facts.job
    if job.attempt > 1:
        yield _runs(job)
    ends = [_end(one, following) for one, following in zip(job.executions, job.executions[1:], strict=False)]
    if job.executions and job.state is JobState.READY:
        ends.append(_end(job.executions[-1], None))
    yield from ends if len(ends) <= ENDS_SHOWN else ends[:1]
    if len(ends) > ENDS_SHOWN:
        yield f"{counted(len(ends) - ENDS_SHOWN, 'more attempt')}; the latest {ENDS_SHOWN - 1}:"
        yield from ends[1 - ENDS_SHOWN :]
    for refusal in job.refusals:
        of = "an unknown attempt" if refusal.attempt is None else f"attempt {refusal.attempt}"
        yield (
            f"Worker {refusal.worker or 'unknown'} reported {refusal.verb.value} for {of} too late, at "
            f"{instant(refusal.at)}, when attempt {refusal.current_attempt} was the latest (lease "
            f"{refusal.reason.value}): it was refused and changed nothing."
        )
    if job.cancellation is not None and not job.is_cancelled:
        yield cancellation(job)
    yield from _redrives(facts)


def _runs(job: Job) -> str:
    committed = next((one for one in job.executions if one.committed_at is not None), None)
    effect = "none has taken effect" if committed is None else f"only attempt {committed.attempt} took effect"
    dropped = job.attempt - len(job.executions)
    cut = f" ({dropped:,} of them are no longer recorded)" if dropped > 0 else ""
    return f"It has been claimed {times(job.attempt)}{cut}; {effect}."


def _end(execution: Execution, following: Execution | None) -> str:
    who = f"Attempt {execution.attempt} (worker {execution.worker})"
    at = instant(execution.finished_at)
    next_one = (
        "" if following is None else f", then worker {following.worker} claimed it as attempt {following.attempt}"
    )
    match execution.reason:
        case AbortReason.EXPIRED:
            began = "before its handler was recorded as started" if execution.started_at is None else "while it ran"
            why = "the worker had died, stalled or lost its connection"
            return f"{who}: its lease expired {began}, noticed at {at}; {why}{next_one}."
        case AbortReason.FAILED:
            return f"{who}: failed at {at} ({error_of(execution)}){next_one}."
        case AbortReason.RELEASED:
            why = "" if execution.error is None else f" ({error_of(execution)})"
            return f"{who}: released at {at}{why}, which does not count as a failure{next_one}."
        case AbortReason.DIED:
            return f"{who}: its lease was ended at {at}, because {error_of(execution)}{next_one}."
        case AbortReason.CANCELLED:
            return f"{who}: cancelled by an operator at {at}{next_one}."
        case None:
            return f"{who}: {execution.status.value} at {at}{next_one}."


def _redrives(facts: JobFacts) -> Iterator[str]:
    acts = [one for one in facts.actions if one.verb is Verb.REDRIVE and facts.job.spec.id in one.targets]
    for act in reversed(acts):
        many = "" if act.count == 1 else f" with {counted(act.count - 1, 'other')}"
        yield f"{act.by} redrove it{many} at {instant(act.at)}: {act.reason}."
    if facts.job.redriven_attempt is not None and not acts:
        yield f"An operator redrove it after attempt {facts.job.redriven_attempt}; who and why are no longer recorded."


def cancellation(job: Job) -> str:
    act = job.cancellation
    if act is None:
        return f"An operator cancelled it at {instant(job.updated_at)}."
    return f"{act.by} cancelled it at {instant(act.at)}: {act.reason}."


def error_of(execution: Execution) -> str:
    return error_line(execution.error)


def shown_error(job: Job) -> str | None:
    """The error to show beside a job's state: of one that has succeeded, only what its last attempt has on record."""
    return job.executions[-1].error if job.state is JobState.SUCCEEDED else last_error(job)


def error_line(error: str | None) -> str:
    """The first line of an error, to be put into a sentence."""
    return (error or NO_ERROR).partition("\n")[0].rstrip(".")


# Mismatches -----------------------------------------------------------------------------------------------------

MISMATCH: Final = "Mismatch: "
"""The beginning of the error of such an execution."""


def mismatches(job: Job) -> list[Execution]:
    """The executions that ended with a mismatch since a handler last began, or an operator redrove the job."""
    found: list[Execution] = []
    for execution in reversed(job.executions):
        if execution.started_at is not None or execution.attempt <= (job.redriven_attempt or 0):
            break
        if is_mismatch(execution):
            found.append(execution)
    found.reverse()
    return found


def is_mismatch(execution: Execution) -> bool:
    return execution.reason is AbortReason.RELEASED and (execution.error or "").startswith(MISMATCH)
