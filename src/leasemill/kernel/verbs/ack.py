"""ack: the job has succeeded, and its lane's next becomes the head. Rules L6, X7 and N7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import check_json, check_reports
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import ExecutionDone
from leasemill.kernel.model import ExecutionStatus, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.fence import Lost, execution_of, held_or_committed, refuse
from leasemill.kernel.transitions.lanes import LaneHint, hint_at_head, hint_behind_head

__all__ = ["Ack", "AckOutcome", "AckReport", "Acked"]


class AckReport(Struct, frozen=True):
    """`result` is the job's, unless it was committed with one before."""

    job_id: str
    token: str
    result: bytes | None = None


class Acked(Struct, frozen=True):
    job_id: str
    next_in_lane: LaneHint | None = None
    is_repeat: bool = False


AckOutcome: TypeAlias = Acked | Lost


class Ack(Command[list[AckOutcome]], frozen=True):
    reports: Sequence[AckReport]


def check(command: Ack) -> None:
    check_reports(command.reports)
    for report in command.reports:
        if report.result is not None:
            check_json("result", report.result)


def decide(state: State, report: AckReport, now: int) -> Decision[AckOutcome]:
    """The event, `ExecutionDone`, is applied by `kernel.transitions.executions`: other verbs make it as well."""
    job = state.jobs.get(report.job_id)
    execution = execution_of(job, report.token)
    if job is not None and execution is not None and execution.status is ExecutionStatus.DONE:
        return (), Acked(report.job_id, hint_at_head(state, job), is_repeat=True)  # L6
    if job is None or not held_or_committed(execution, now):
        return refuse(job, report.job_id, execution, report.token, Verb.ACK, now)
    event = ExecutionDone(report.job_id, report.token, now, Verb.ACK, report.result, None)
    return (event,), Acked(report.job_id, hint_behind_head(state, job))
