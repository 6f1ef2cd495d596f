"""release: the holder gives the job back unrun, and nothing is counted against it. Rule F3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US, check_name, check_range, check_reports, check_string
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import LeaseReleased, RateHeld
from leasemill.kernel.index.limit_index import NO_TERMS, held_until
from leasemill.kernel.model import AbortReason, ExecutionStatus, Job, JobState, LimitUse, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import done_after_commit, end, give_back, reported_uncommitted
from leasemill.kernel.transitions.fence import Lost, execution_of, held_or_committed, refuse

__all__ = ["Release", "ReleaseOutcome", "ReleaseReport", "Released"]


class ReleaseReport(Struct, frozen=True):
    """Without a delay the job keeps its place in the order. `error`: why it could not be run, if it could not. `limit`
    and `hold_us`: nothing is granted under this limit, with the job's key, for this time (T13)."""

    job_id: str
    token: str
    delay_us: int | None = None
    error: str | None = None
    limit: str | None = None
    hold_us: int | None = None


class Released(Struct, frozen=True):
    """READY again, or SUCCEEDED if the job had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


ReleaseOutcome: TypeAlias = Released | Lost


class Release(Command[list[ReleaseOutcome]], frozen=True):
    reports: Sequence[ReleaseReport]


def check(command: Release) -> None:
    check_reports(command.reports)
    for report in command.reports:
        check_range("delay_us", report.delay_us, 0, LONGEST_US)
        if report.error is not None:
            check_string("error", report.error)
        if (report.limit is None) != (report.hold_us is None):
            raise Invalid("a release that holds a limit needs both limit and hold_us")
        if report.limit is not None:
            check_name("limit", report.limit)
            check_range("hold_us", report.hold_us, 0, LONGEST_US)


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
        return (done, *_holds(state, job, report, now)), Released(report.job_id, JobState.SUCCEEDED)
    available_at = job.available_at if report.delay_us is None else now + report.delay_us
    event = LeaseReleased(report.job_id, report.token, now, available_at, report.error)
    return (event, *_holds(state, job, report, now)), Released(report.job_id, JobState.READY)


def _holds(state: State, job: Job, report: ReleaseReport, now: int) -> Iterator[RateHeld]:
    """T13: for the key that the job is under; for the name without one if it is not under this limit."""
    name, hold_us = report.limit, report.hold_us
    if name is None or hold_us is None:
        return
    rules = job.spec.rules
    uses = [use for use in (() if rules is None else rules.limits) if use.name == name] or [LimitUse(name)]
    for use in uses:
        limit = state.limits.get(name)
        tally = None if limit is None else limit.tallies.get(use.key)
        terms = NO_TERMS if limit is None else limit.terms
        yield RateHeld(name, use.key, now, held_until(terms, 0 if tally is None else tally.tat, now + hold_us))


def apply(state: State, event: LeaseReleased) -> None:
    job, execution = reported_uncommitted(state, event)
    execution.reason = AbortReason.RELEASED
    if event.error is not None:
        execution.error = event.error
    end(state, execution, ExecutionStatus.ABORTED, Verb.RELEASE, event.at)
    job.available_at = event.available_at
    give_back(state, job, event.at)
