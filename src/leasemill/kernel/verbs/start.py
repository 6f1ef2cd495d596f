"""start: the handler of a leased job has begun. Rule X3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import LONGEST_US, check_range, check_reports
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import ExecutionStarted
from leasemill.kernel.model import ExecutionStatus, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import does_not_follow, reported
from leasemill.kernel.transitions.fence import Lost, execution_of, held, refuse

__all__ = ["Start", "StartOutcome", "StartReport", "Started"]


class StartReport(Struct, frozen=True):
    """`age_us`: how long ago the handler started, for starts that are reported late."""

    job_id: str
    token: str
    age_us: int = 0


class Started(Struct, frozen=True):
    job_id: str


StartOutcome: TypeAlias = Started | Lost


class Start(Command[list[StartOutcome]], frozen=True):
    reports: Sequence[StartReport]


def check(command: Start) -> None:
    check_reports(command.reports)
    for report in command.reports:
        check_range("age_us", report.age_us, 0, LONGEST_US)


def decide(state: State, report: StartReport, now: int) -> Decision[StartOutcome]:
    job = state.jobs.get(report.job_id)
    execution = execution_of(job, report.token)
    if execution is None or not held(execution, now):
        return refuse(job, report.job_id, execution, report.token, Verb.START, now)
    if execution.status is not ExecutionStatus.LEASED:
        return (), Started(report.job_id)
    started_at = max(execution.leased_at, now - report.age_us)
    return (ExecutionStarted(report.job_id, report.token, now, started_at),), Started(report.job_id)


def apply(state: State, event: ExecutionStarted) -> None:
    job, execution = reported(state, event)
    if execution.status is not ExecutionStatus.LEASED:
        does_not_follow(event, f"the execution is {execution.status}")
    execution.status = ExecutionStatus.STARTED
    execution.started_at = event.started_at
    job.updated_at = event.at
