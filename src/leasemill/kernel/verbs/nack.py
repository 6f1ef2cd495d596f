"""nack: the handler failed. The job is retried after a delay, or FAILED when no retry is left. Rules F1, F2 and F5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US, check_range, check_reports, check_string
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import ExecutionFailed, FailureKept
from leasemill.kernel.model import AbortReason, Execution, ExecutionStatus, Job, JobState, KeptFailure, Verb
from leasemill.kernel.state import FAILED, State
from leasemill.kernel.transitions.executions import (
    blocks_lane,
    done_after_commit,
    end,
    give_back,
    give_up,
    reported_uncommitted,
)
from leasemill.kernel.transitions.fence import Lost, execution_of, held_or_committed, refuse
from leasemill.kernel.transitions.lanes import LaneHint, hint_at_head, hint_behind_head
from leasemill.kernel.transitions.retry import backoff_us, exhausted

__all__ = ["Nack", "NackOutcome", "NackReport", "Nacked"]


class NackReport(Struct, frozen=True):
    """`jitter` in [0, 1) draws the back-off: 0 retries at once, so draw one for each report, as workers do (a server
    draws one where it is missing); `delay_us` replaces it; `keep_lease` needs a `report_id` to distinguish a repeat
    from a second failure."""

    job_id: str
    token: str
    error: str
    jitter: float = 0.0
    delay_us: int | None = None
    is_permanent: bool = False
    keep_lease: bool = False
    report_id: str = ""


class Nacked(Struct, frozen=True):
    """READY: to be retried at `available_at`; LEASED: retried under the same lease; FAILED: for good; SUCCEEDED: the
    job had committed, so the failure is only a note."""

    job_id: str
    state: JobState
    retries: int
    available_at: int | None = None
    next_in_lane: LaneHint | None = None
    is_repeat: bool = False


NackOutcome: TypeAlias = Nacked | Lost


class Nack(Command[list[NackOutcome]], frozen=True):
    reports: Sequence[NackReport]


def check(command: Nack) -> None:
    check_reports(command.reports)
    for report in command.reports:
        check_string("error", report.error)
        check_string("report id", report.report_id)
        if not 0 <= report.jitter < 1:
            raise Invalid(f"jitter is {report.jitter}; it must be at least 0 and less than 1")
        check_range("delay_us", report.delay_us, 0, LONGEST_US)
        if report.keep_lease and not report.report_id:
            raise Invalid("nack with keep_lease needs a report_id, to distinguish a repeat from a second failure")


def decide(state: State, report: NackReport, now: int) -> Decision[NackOutcome]:
    job = state.jobs.get(report.job_id)
    execution = execution_of(job, report.token)
    if job is not None and execution is not None:
        repeated = _repeated(state, job, execution, report)
        if repeated is not None:
            return (), repeated  # L6
    if job is None or execution is None or not held_or_committed(execution, now):
        return refuse(job, report.job_id, execution, report.token, Verb.NACK, now)
    if execution.status is ExecutionStatus.COMMITTED:
        return (done_after_commit(execution, Verb.NACK, now, report.error),), Nacked(
            report.job_id, JobState.SUCCEEDED, job.retries, next_in_lane=hint_behind_head(state, job)
        )
    terms = execution.terms
    if report.is_permanent or exhausted(job, terms):
        is_blocking = blocks_lane(job, terms)
        hint = None if is_blocking else hint_behind_head(state, job)
        failed = ExecutionFailed(report.job_id, report.token, now, report.error, True, is_blocking, None)
        return (failed,), Nacked(report.job_id, JobState.FAILED, job.retries, next_in_lane=hint)
    if report.keep_lease:
        return (FailureKept(report.job_id, report.token, now, report.error, report.report_id),), Nacked(
            report.job_id, JobState.LEASED, job.retries + 1
        )
    delay_us = backoff_us(terms, job.retries, report.jitter) if report.delay_us is None else report.delay_us
    retry_at = now + delay_us
    event = ExecutionFailed(report.job_id, report.token, now, report.error, False, False, retry_at)
    return (event,), Nacked(report.job_id, JobState.READY, job.retries + 1, retry_at)


def _repeated(state: State, job: Job, execution: Execution, report: NackReport) -> Nacked | None:
    if execution.status is ExecutionStatus.DONE and execution.ended_by is not Verb.ACK:
        hint = hint_at_head(state, job)
        return Nacked(report.job_id, JobState.SUCCEEDED, job.retries, next_in_lane=hint, is_repeat=True)
    if execution.ended_by is Verb.NACK:
        state_then = JobState.FAILED if execution.is_final else JobState.READY
        hint = hint_at_head(state, job) if execution.is_final else None
        return Nacked(report.job_id, state_then, job.retries, execution.retry_at, hint, is_repeat=True)
    kept = execution.kept_failure
    if report.keep_lease and kept is not None and kept.report_id == report.report_id:
        return Nacked(report.job_id, JobState.LEASED, kept.retries, is_repeat=True)
    return None


def apply_failed(state: State, event: ExecutionFailed) -> None:
    job, execution = reported_uncommitted(state, event)
    if execution.started_at is None:
        execution.started_at = event.at
    execution.reason = AbortReason.FAILED
    execution.error = event.error
    execution.is_final = event.is_final
    execution.retry_at = event.retry_at
    end(state, execution, ExecutionStatus.ABORTED, Verb.NACK, event.at)
    if event.retry_at is None:
        give_up(state, job, FAILED, event.at, blocks_lane=event.blocks_lane)
    else:
        job.retries += 1
        job.available_at = event.retry_at
        give_back(state, job, event.at)


def apply_failure_kept(state: State, event: FailureKept) -> None:
    job, execution = reported_uncommitted(state, event)
    job.retries += 1
    job.updated_at = event.at
    if execution.status is ExecutionStatus.LEASED:
        execution.status = ExecutionStatus.STARTED
        execution.started_at = event.at
    execution.error = event.error
    execution.kept_failure = KeptFailure(event.report_id, job.retries)
