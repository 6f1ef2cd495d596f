"""A job's record as Django's `TaskResult`."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.conf import settings
from django.utils import timezone

from leasemill.api.outcomes import INVALID_RESULT, Outcome
from leasemill.contrib.django.task_backend.names import TaskError, TaskResult, TaskResultStatus
from leasemill.kernel.model import ENDED_STATES, AbortReason, Execution, ExecutionStatus, Job, JobState

STATUSES: Final = {
    JobState.READY: TaskResultStatus.READY,
    JobState.LEASED: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.FAILED: TaskResultStatus.FAILED,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
UNSUPPORTED_RETURN: Final = "UnsupportedReturn"
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*(?:<locals>[\w.]+)*")


class Payload(msgspec.Struct):
    """The arguments of a task in a job."""

    args: list[Any]
    kwargs: dict[str, Any]


_payload: Final = msgspec.json.Decoder(Payload).decode


def new_result(task: Any, alias: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a task that is about to be enqueued. Refuses what is not JSON with a TypeError, as Django
    does."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def result_of(job: Job, task: Any, alias: str) -> Any:
    """Return the result of a task, as the store knows it."""
    given = _payload(job.spec.payload)
    attempts = [one for one in job.executions if _was_attempted(one)]
    result = TaskResult(
        task=task,
        id=job.spec.id,
        status=STATUSES[job.state],
        enqueued_at=instant(job.created_at),
        started_at=_begin_of(attempts[0]) if attempts else None,
        finished_at=_end_of(job),
        last_attempted_at=_begin_of(attempts[-1]) if attempts else None,
        args=given.args,
        kwargs=given.kwargs,
        backend=alias,
        errors=_errors(job),
        worker_ids=[one.worker for one in attempts],
    )
    if job.state is JobState.SUCCEEDED and job.result is not None:
        put(result, _return_value=msgspec.json.decode(job.result))
    return result


def put(result: Any, **values: object) -> None:
    """Results are frozen for users; backends write to them like this."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def instant(at: int) -> datetime:
    """A time of the store's as Django gives times: aware, or naive without USE_TZ."""
    aware = datetime.fromtimestamp(at / 1_000_000, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def _was_attempted(one: Execution) -> bool:
    """Return False for a claim that was released."""
    return not (one.status is ExecutionStatus.ABORTED and one.reason is AbortReason.RELEASED)


def _begin_of(one: Execution) -> datetime:
    """Most starts are not recorded by themselves; then it is when it was claimed."""
    return instant(one.leased_at if one.started_at is None else one.started_at)


def _end_of(job: Job) -> datetime | None:
    if job.state not in ENDED_STATES:
        return None
    if job.state is JobState.CANCELLED and job.cancellation is not None:
        return instant(job.cancellation.at)
    last = job.executions[-1] if job.executions else None
    return instant(job.updated_at if last is None or last.finished_at is None else last.finished_at)


# Errors ---------------------------------------------------------------------------------------------------------


def _errors(job: Job) -> list[Any]:
    """Return an error for each failed attempt, and one for an end that no attempt reported."""
    found = [
        task_error(one.error) for one in job.executions if one.reason is AbortReason.FAILED and one.error is not None
    ]
    if job.state is JobState.DEAD:
        why = f"quarantined: {job.expirations} of its runs ended with their worker or their lease"
        found.append(TaskError(exception_class_path="leasemill.errors.JobDead", traceback=f"{why}\n"))
    if job.state is JobState.CANCELLED:
        by = "by an operator" if job.cancellation is None else f"by {job.cancellation.by}: {job.cancellation.reason}"
        found.append(TaskError(exception_class_path="leasemill.errors.JobCancelled", traceback=f"cancelled {by}\n"))
    return found


def task_error(text: str) -> Any:
    """Return Django's form of a stored error: its first line names the class and the message; the frames follow."""
    first, _, rest = text.partition("\n")
    frames = f"Traceback (most recent call last):\n{rest}\n" if rest else ""
    return TaskError(exception_class_path=_class_path(first), traceback=f"{frames}{first}\n")


def _class_path(first_line: str) -> str:
    found = _CLASS.match(first_line)
    name = found[0] if found else "Exception"
    if name == UNSUPPORTED_RETURN or first_line.startswith(INVALID_RESULT):
        return "builtins.TypeError"  # what Django calls a return value that is not JSON
    if "." in name:
        return name
    if isinstance(getattr(builtins, name, None), type):
        return f"builtins.{name}"
    if name in {kind.__name__ for kind in Outcome.__subclasses__()}:
        return f"leasemill.{name}"
    return f"__main__.{name}"
