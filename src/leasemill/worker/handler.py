"""Calls a user's handler and makes the report of how it ended. The one place that catches whatever a handler raises."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from leasemill.api.hooks import RunHook, manager, sync_manager
from leasemill.api.logs import running
from leasemill.api.outcomes import INVALID_RESULT, Fail, Outcome, Release, RetryAfter, Throttled
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.worker.error_text import error_text, fitting, message
from leasemill.worker.run import Run, Stop

log = logging.getLogger("leasemill.worker")

Report: TypeAlias = c.AckReport | c.NackReport | c.ReleaseReport | c.DeathReport
Ended: TypeAlias = tuple[Run, Report]


async def call_async(run: Run, jitter: float) -> Report:
    """Run an async handler to its end."""
    running.set(run)
    run.started_at = time.monotonic()
    try:
        args, kwargs = run.arguments()
        if hooks := run.handler.around_hooks:
            value = await _around_async(run, hooks, args, kwargs)
        else:
            value = await run.handler.function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 (the user's handler: also SystemExit is the job's failure)
        return failure(run, error, jitter)
    return success(run, value)


def call_sync(run: Run, jitter: float) -> Report:
    """Run a sync handler to its end, in the thread this is called in."""
    running.set(run)
    run.started_at = time.monotonic()
    try:
        args, kwargs = run.arguments()
        if hooks := run.handler.around_hooks:
            value = _around_sync(run, hooks, args, kwargs)
        else:
            value = run.handler.function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 (the user's handler: also SystemExit is the job's failure)
        return failure(run, error, jitter)
    return success(run, value)


async def _around_async(
    run: Run, hooks: list[RunHook], args: tuple[Any, ...], kwargs: dict[str, Any], entered: int = 0
) -> object:
    """Call a handler with hooks around it. A hook that swallows an error makes the run a success without a result."""
    assert run.context is not None
    around, inner = manager(hooks[entered], run.context), entered + 1
    call = run.handler.function if inner == len(hooks) else None
    if isinstance(around, AbstractAsyncContextManager):
        async with around:
            return await (call(*args, **kwargs) if call else _around_async(run, hooks, args, kwargs, inner))
    else:
        with around:
            return await (call(*args, **kwargs) if call else _around_async(run, hooks, args, kwargs, inner))


def _around_sync(
    run: Run, hooks: list[RunHook], args: tuple[Any, ...], kwargs: dict[str, Any], entered: int = 0
) -> object:
    assert run.context is not None
    inner = entered + 1
    with sync_manager(hooks[entered], run.context):
        if inner == len(hooks):
            return run.handler.function(*args, **kwargs)
        return _around_sync(run, hooks, args, kwargs, inner)


def success(run: Run, value: object) -> Report:
    """The handler returned. Its effects stand, so a result that cannot be stored is no reason to run it again (F9)."""
    run.has_ended_in_time = not run.loss.is_set()
    lease, job = run.lease, run.handler
    has_committed = run.context is not None and run.context.is_committed
    if value is None and (has_committed or job.arguments.may_return_none):  # the commit has the result, if there is one
        return c.AckReport(lease.job.id, lease.token)
    try:
        if inspect.iscoroutine(value):
            value.close()
            raise Invalid(f"{job.kind} returned a coroutine from a plain function; declare it with `async def`")
        report = c.AckReport(lease.job.id, lease.token, job.arguments.encode_result(value))
    except Exception as error:  # noqa: BLE001 (what the user returned: encoding it may run code of theirs)
        text = f"{INVALID_RESULT}{message(error)}; the handler ran and its effects stand, so it is not run again"
        return c.NackReport(lease.job.id, lease.token, fitting(text), is_permanent=True)
    if run.context is not None and run.context.has_committed_without_result:
        log.warning(
            "the handler returned a result after its commit, which is dropped: use tx.set_result",
            extra=run.log_fields,
        )
    return report


def failure(run: Run, error: BaseException, jitter: float) -> Report:
    """The report of what a handler raised. It never raises itself: a run without a report would keep its slot."""
    run.has_ended_in_time = not run.loss.is_set()
    lease = run.lease
    run.raised = error
    try:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # without this module
        if _is_for_the_log(error):
            run.error = error
        match error:
            case Release():
                return c.ReleaseReport(lease.job.id, lease.token, error.delay_us)
            case Throttled():
                text = error_text(error)
                return c.ReleaseReport(lease.job.id, lease.token, None, text, error.limit, error.hold_us)
            case Fail():
                return c.NackReport(lease.job.id, lease.token, error_text(error), is_permanent=True)
            case RetryAfter():
                return c.NackReport(lease.job.id, lease.token, error_text(error), delay_us=error.delay_us)
            case BaseException():
                run.is_never_retried = not run.handler.retry.allows(error)
                return c.NackReport(lease.job.id, lease.token, error_text(error), jitter)
            case _:
                assert_never(error)
    except BaseException as broken:  # noqa: BLE001 (the user's exception class, for example without `delay_us`)
        text = f"{type(error).__name__}, of which no report can be made ({type(broken).__name__})"
        return c.NackReport(lease.job.id, lease.token, fitting(text), jitter)


def _is_for_the_log(error: BaseException) -> bool:
    """Its traceback is of interest, and handlers of the log can write its text."""
    if isinstance(error, Outcome) and error.__cause__ is None:
        return False
    text = message(error)
    return text.isascii() or text.encode("utf-8", "ignore").decode() == text


def last_report(run: Run, report: Report | None, jitter: Callable[[], float]) -> Report | None:
    """What is reported of a run that ended with this report, or without one; None: nothing, the store has ended it.

    X8: a handler that ended after its loss has no say in it, whatever it returned or raised.
    """
    match run.stop:
        case Stop.LOST:
            return given_back(run) if run.is_given_back_at_end else None
        case Stop.TIMEOUT if not run.has_ended_in_time:
            return _timed_out(run, jitter())
        case Stop.SHUTDOWN if not run.has_ended_in_time:
            return given_back(run)
        case _:
            assert report is not None
            return _final(report) if run.is_never_retried else report


def _timed_out(run: Run, jitter: float) -> c.NackReport:
    lease = run.lease
    return c.NackReport(
        lease.job.id,
        lease.token,
        f"TimeoutError: {lease.job.kind} ran longer than its timeout of {lease.terms.timeout_us / SECOND:g} s; "
        "allow more with @app.job(timeout=...), or do less in one job",
        jitter,
        is_permanent=not run.handler.retry.allows(TimeoutError()),
    )


def _final(report: Report) -> Report:
    """The report of an error that is not retried."""
    return replace(report, is_permanent=True) if isinstance(report, c.NackReport) else report


def given_back(run: Run, delay_us: int | None = None) -> c.ReleaseReport:
    return c.ReleaseReport(run.lease.job.id, run.lease.token, delay_us)
