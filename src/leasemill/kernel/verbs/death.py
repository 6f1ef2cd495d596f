"""death: the holder of a lease is proved to have ended, so the lease ends before its time. Rules L10, F3 and F4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import check_reports, check_string
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import HolderDied
from leasemill.kernel.model import LIVE, AbortReason, ExecutionStatus, JobState, LossReason, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import done_after_commit, end_unfinished, quarantine, uncommitted
from leasemill.kernel.transitions.fence import Lost, execution_of, loss_reason

__all__ = ["Death", "DeathOutcome", "DeathReport", "Died"]


class DeathReport(Struct, frozen=True):
    """`cause`: how the holder ended and who saw it, in words. Only for what is proved: a holder that may still be
    running, stopped or cut off, keeps its lease."""

    job_id: str
    token: str
    cause: str


class Died(Struct, frozen=True):
    """`state` is the job's afterwards: READY, DEAD after too many, SUCCEEDED if it had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


DeathOutcome: TypeAlias = Died | Lost


class Death(Command[list[DeathOutcome]], frozen=True):
    reports: Sequence[DeathReport]


def check(command: Death) -> None:
    check_reports(command.reports)
    for report in command.reports:
        check_string("cause", report.cause)


def decide(state: State, report: DeathReport, now: int) -> Decision[DeathOutcome]:
    """A proof that comes too late changes nothing. It is not a handler's report, so no refusal is recorded."""
    job = state.jobs.get(report.job_id)
    execution = execution_of(job, report.token)
    if job is None or execution is None:
        attempt = 0 if job is None else job.attempt
        return (), Lost(report.job_id, Verb.DEATH, LossReason.UNKNOWN, None, attempt)
    if execution.ended_by is Verb.DEATH:
        if execution.status is ExecutionStatus.DONE:
            return (), Died(report.job_id, JobState.SUCCEEDED, is_repeat=True)
        after = JobState.DEAD if execution.is_final else JobState.READY
        return (), Died(report.job_id, after, is_repeat=True)
    if execution.status not in LIVE:
        return (), Lost(report.job_id, Verb.DEATH, loss_reason(job, execution), execution.attempt, job.attempt)
    if execution.status is ExecutionStatus.COMMITTED:
        done = done_after_commit(execution, Verb.DEATH, now, report.cause)
        return (done,), Died(report.job_id, JobState.SUCCEEDED)
    is_final, is_blocking = quarantine(job, execution)
    event = HolderDied(report.job_id, report.token, now, is_final, is_blocking, report.cause)
    return (event,), Died(report.job_id, JobState.DEAD if is_final else JobState.READY)


def apply(state: State, event: HolderDied) -> None:
    job, execution = uncommitted(state, event)
    execution.reason = AbortReason.DIED
    execution.error = event.cause
    end_unfinished(state, job, execution, Verb.DEATH, event)
