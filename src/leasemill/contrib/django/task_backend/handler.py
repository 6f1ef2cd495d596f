"""The handler of a task: what Django expects around its function.

The signals are those of this run: `task_finished` is sent when it knows that no other will follow. The store knows
better (a lease can be lost later), so what counts is the result, not the signal.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from traceback import format_exception
from typing import Any

from django.utils import timezone

from leasemill.api.context import Context
from leasemill.api.outcomes import Fail, Release, Throttled
from leasemill.contrib.django.application import app
from leasemill.contrib.django.task_backend.names import (
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from leasemill.contrib.django.task_backend.results import new_result, put, result_of
from leasemill.contrib.django.task_backend.task import LeasemillTaskContext
from leasemill.errors import LeaseLost
from leasemill.kernel.model import Job


class UnsupportedReturn(Fail, TypeError):
    """The task returned what is not JSON. It ran, so it is not run again."""


def handler_of(task: Any, sender: type) -> Callable[..., Any]:
    """Return the handler that a worker runs for a task."""

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _begun(task, ctx, args, kwargs, app.store.job(ctx.job_id) if ctx.attempt > 1 else None)
        task_started.send(sender, task_result=result)
        try:
            value = _returned(task.func(*_arguments(task, ctx, result), **result.kwargs))
        except BaseException as error:
            if _ended(result, ctx, error):
                task_finished.send(sender, task_result=result)
            raise
        _succeeded(result, value)
        task_finished.send(sender, task_result=result)
        return value

    async def run_async(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _begun(task, ctx, args, kwargs, await app.store.ajob(ctx.job_id) if ctx.attempt > 1 else None)
        await task_started.asend(sender, task_result=result)
        try:
            value = _returned(await task.func(*_arguments(task, ctx, result), **result.kwargs))
        except BaseException as error:
            if _ended(result, ctx, error):
                await task_finished.asend(sender, task_result=result)
            raise
        _succeeded(result, value)
        await task_finished.asend(sender, task_result=result)
        return value

    chosen: Callable[..., Any] | Callable[..., Coroutine[Any, Any, Any]]
    chosen = run_async if inspect.iscoroutinefunction(task.func) else run
    return chosen


def _begun(task: Any, ctx: Context, args: list[Any], kwargs: dict[str, Any], job: Job | None) -> Any:
    """The result as it stands when the function is called; the record is read for a later attempt alone."""
    if job is not None:
        result = result_of(job, task, task.backend)
    else:
        result = new_result(task, task.backend, args, kwargs)
        now = timezone.now()
        put(result, id=ctx.job_id, started_at=now, last_attempted_at=now, worker_ids=[ctx.worker])
        put(result, enqueued_at=ctx.enqueued_at)
    put(result, status=TaskResultStatus.RUNNING)
    return result


def _arguments(task: Any, ctx: Context, result: Any) -> list[Any]:
    if not task.takes_context:
        return list(result.args)
    return [LeasemillTaskContext(task_result=result, run=ctx), *result.args]


def _returned(value: object) -> Any:
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise UnsupportedReturn(str(error)) from None


def _succeeded(result: Any, value: object) -> None:
    put(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)


def _ended(result: Any, ctx: Context, error: BaseException) -> bool:
    """Return True if it failed permanently; the result shows it then."""
    if isinstance(error, Release | Throttled | LeaseLost | asyncio.CancelledError) or ctx.lost.is_set():
        return False
    kind = TypeError if isinstance(error, UnsupportedReturn) else type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
    if not ctx.is_final(error):
        return False
    put(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    return True
