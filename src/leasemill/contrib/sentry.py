"""Sends what jobs fail with to Sentry: `sentry_sdk.init(...)`, then `instrument(app)`.

An exception is captured where it was raised, in the handler's thread, task or process: there it still has its causes,
its variables and the breadcrumbs of its run. A failure without an exception (a timeout, a process that died) is
captured in the worker, when it is on record. What must never happen here: an event with the tags of another job, or two
events for one failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from logging import LogRecord
from typing import Any, Final

try:
    import sentry_sdk
except ModuleNotFoundError as error:
    message = "leasemill.contrib.sentry needs sentry-sdk: pip install sentry-sdk"
    raise ModuleNotFoundError(message, name=error.name) from error

from sentry_sdk.scope import Scope, add_global_event_processor
from sentry_sdk.types import Event

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.api.hooks import JobEvent
from leasemill.api.outcomes import Release, Throttled
from leasemill.errors import Invalid, LeaseLost
from leasemill.operator.fingerprint import error_fingerprint
from leasemill.worker.error_text import error_text
from leasemill.worker.processes.log_relay import RaisedInProcess

CAPTURED: Final = "_leasemill_sentry_captured"


def instrument(app: App, *, every_attempt: bool = False) -> None:
    """Send failures of the app's jobs to Sentry. Once for an app, before its worker is made.

    By default those after which the job is not tried again; `every_attempt`: all. LeaseLost, Release and Throttled are
    not failures. Events carry the job's id, kind, queue and attempt, and are grouped as `leasemill jobs failures` does.
    """
    if not isinstance(app, App):
        raise Invalid(f"instrument takes the leasemill.App, not {app!r}: write instrument(app)")
    if any(getattr(hook, "__module__", None) == __name__ for hook in app.hooks.around):
        raise Invalid("this app is instrumented already: call instrument(app) once, where the app is made")

    @contextmanager
    def captured(ctx: Context[Any]) -> Iterator[None]:
        with _scope_of(ctx.job_id, ctx.kind, ctx.queue, ctx.attempt, ctx.worker) as scope:
            try:
                yield
            except Exception as error:  # of the user's handler
                if _is_error(ctx, error) and (every_attempt or ctx.is_committed or ctx.is_final(error)):
                    _capture(scope, error, error_fingerprint(ctx.kind, error_text(error)))
                raise

    def failed(event: JobEvent) -> None:
        raised = event.exception
        if isinstance(raised, RaisedInProcess) or (raised is not None and CAPTURED in vars(raised)):
            return
        with _scope_of(event.job_id, event.kind, event.queue, event.attempt, event.worker) as scope:
            _capture(scope, raised or event.error or "", event.fingerprint or "")

    app.hooks.around.insert(0, captured)  # the other hooks run inside the scope
    app.on_failure(failed)
    if every_attempt:
        app.on_retry(failed)
    _drop_repeated_lines()


def _is_error(ctx: Context[Any], error: Exception) -> bool:
    return not isinstance(error, LeaseLost | Release | Throttled) and not ctx.lost.is_set()


@contextmanager
def _scope_of(job_id: str, kind: str, queue: str, attempt: int, worker: str) -> Iterator[Scope]:
    """A scope of this job's alone: what its handler sets there is not seen by others."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_transaction_name(kind, source="task")
        scope.set_tag("leasemill.kind", kind)
        scope.set_tag("leasemill.queue", queue)
        scope.set_tag("leasemill.job_id", job_id)
        scope.set_tag("leasemill.attempt", attempt)
        scope.set_context("job", {"id": job_id, "kind": kind, "queue": queue, "attempt": attempt, "worker": worker})
        yield scope


def _capture(scope: Scope, what: BaseException | str, fingerprint: str) -> None:
    scope.fingerprint = ["leasemill", fingerprint]
    scope.set_tag("leasemill.fingerprint", fingerprint)
    if isinstance(what, str):
        sentry_sdk.capture_message(what, level="error")
    else:
        vars(what)[CAPTURED] = True
        sentry_sdk.capture_exception(what)


@cache
def _drop_repeated_lines() -> None:
    """Sentry makes events of errors in the log: not of those that are captured already."""
    add_global_event_processor(_unless_repeated)


def _unless_repeated(event: Event, hint: dict[str, Any]) -> Event | None:
    record = hint.get("log_record")
    if not isinstance(record, LogRecord):
        return event
    is_of_job = record.name == "leasemill.worker" and hasattr(record, "job")
    is_of_other_process = record.process != os.getpid()  # logged, and captured, in a handler's process
    return None if is_of_job or is_of_other_process else event
