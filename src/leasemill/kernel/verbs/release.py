"""release: the holder gives the job back unrun, and nothing is counted against it. Rule F3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import LONGEST_US, check_batch, check_range, check_report, check_string
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.ending import done_after_commit, end, give_back
from leasemill.kernel.events import LeaseReleased
from leasemill.kernel.fence import Lost, execution_of, held_or_committed, refuse
from leasemill.kernel.lookup import uncommitted
from leasemill.kernel.model import AbortReason, ExecutionStatus, JobState, Verb
from leasemill.kernel.state import State

__all__ = ["Release", "ReleaseOutcome", "ReleaseReport", "Released"]


class ReleaseReport(Struct, frozen=True):
    """Without a delay the job is as early in the order as it was. `error`: why it could not be run, if it could not."""

    job_id: str
    token: str
    delay_us: int | None = None
    error: str | None = None


class Released(Struct, frozen=True):
    """READY again, or SUCCEEDED if the job had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


ReleaseOutcome: TypeAlias = Released | Lost


class Release(Command[list[ReleaseOutcome]], frozen=True):
    reports: Sequence[ReleaseReport]


def check(command: Release) -> None:
    check_batch(command.reports)
    for report in command.reports:
        check_report(report)
        check_range("delay_us", report.delay_us, 0, LONGEST_US)
        if report.error is not None:
            check_string("error", report.error)


def decide(state: State, report: ReleaseReport, now: int) -> Decision[ReleaseOutcome]:
    job = state.jobs.get(report.job_id)
    execution = execution_of(job, report.token)
    if execution is not None:
        if execution.status is ExecutionStatus.DONE and execution.ended_by is not Verb.ACK:
            return (), Released(report.job_id, JobState.SUCCEEDED, is_repeat=True)
        if execution.ended_by is Verb.RELEASE:
            return (), Released(report.job_id, JobState.READY, is_repeat=True)
    if job is None or execution is None or not held_or_committed(execution, now):
        return refuse(job, report.job_id, execution, report.token, Verb.RELEASE, now)
    if execution.status is ExecutionStatus.COMMITTED:
        done = done_after_commit(execution, Verb.RELEASE, now, report.error)
        return (done,), Released(report.job_id, JobState.SUCCEEDED)
    available_at = job.available_at if report.delay_us is None else now + report.delay_us
    event = LeaseReleased(report.job_id, report.token, now, available_at, report.error)
    return (event,), Released(report.job_id, JobState.READY)


def apply(state: State, event: LeaseReleased) -> None:
    job, execution = uncommitted(state, event)
    execution.reason = AbortReason.RELEASED
    if event.error is not None:
        execution.error = event.error
    end(state, execution, ExecutionStatus.ABORTED, Verb.RELEASE, event.at)
    job.available_at = event.available_at
    give_back(state, job, event.at)
