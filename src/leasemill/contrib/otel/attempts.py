"""`process QUEUE`: a span around each run of a handler, where the handler runs; what the handler does is below it.

It knows how the handler ended. What the store made of that is known later, and is in `settle QUEUE`.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Token
from types import TracebackType
from typing import TypeAlias

from opentelemetry.context import Context as OtelContext
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, Span, SpanKind, set_span_in_context
from opentelemetry.trace.status import StatusCode

from leasemill.api.context import Context
from leasemill.api.lease_loss import SHUTTING_DOWN, TIMED_OUT
from leasemill.api.outcomes import Outcome, Release, Throttled
from leasemill.contrib.otel.carrier import creation
from leasemill.contrib.otel.conventions import (
    ATTEMPT,
    ERROR_TYPE,
    EXPIRATIONS,
    FENCE,
    KIND,
    LANE,
    LOST,
    MESSAGE_ID,
    OUTCOME,
    REASON,
    error_type,
    named,
)
from leasemill.contrib.otel.telemetry import Telemetry
from leasemill.errors import LeaseLost
from leasemill.worker.error_text import message

_Ended: TypeAlias = tuple[str, type[BaseException] | None, BaseException | None]
"""The end of a handler: how it ended, its failure if it is one, and what was raised."""

_SUCCEEDED: _Ended = ("succeeded", None, None)


class Attempt:
    """A run of a handler; `app.around` enters it."""

    __slots__ = ("_began", "_context", "_of", "_span", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, context: Context) -> None:
        self._telemetry = telemetry
        self._context = context
        self._of = named("process", context.queue)
        self._span: Span | None = None
        self._token: Token[OtelContext] | None = None
        self._began = time.perf_counter()

    def __enter__(self) -> None:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 (samplers and processors are the user's)
            self._telemetry.failed("an attempt", error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        except Exception as failed:  # noqa: BLE001 (processors and exporters are the user's)
            self._telemetry.failed("an attempt", failed)

    def _begin(self) -> None:
        context = self._context
        attributes: dict[str, str | int] = {
            **self._of.attributes,
            KIND: context.kind,
            MESSAGE_ID: context.job_id,
            ATTEMPT: context.attempt,
            FENCE: context.fence,
        }
        if context.lane is not None:
            attributes[LANE] = context.lane
        if context.expirations:
            attributes[EXPIRATIONS] = context.expirations
        made_by = creation(context.headers)
        self._span = self._telemetry.tracer.start_span(
            self._of.span,
            self._telemetry.context_for(made_by),
            SpanKind.CONSUMER,
            attributes,
            () if made_by is None else (Link(made_by),),
        )
        self._token = attach(set_span_in_context(self._span))

    def _end(self, raised: BaseException | None) -> None:
        span, context = self._span, self._context
        took_s = time.perf_counter() - self._began
        outcome, failed, error = _ended(context, raised)
        failure = None if failed is None else error_type(failed)
        if self._token is not None:
            detach(self._token)
        self._telemetry.instruments.processed(self._of, took_s, failure)
        if span is None or not span.is_recording():
            return
        span.set_attribute(OUTCOME, outcome)
        if outcome == "lost":
            span.add_event(LOST, {REASON: str(context.lost.reason or "expired")})
        if failure is not None:
            span.set_attribute(ERROR_TYPE, failure)
            span.set_status(StatusCode.ERROR, None if error is None else message(error))
        if error is not None:
            span.record_exception(error)
        span.end()


def _ended(context: Context, raised: BaseException | None) -> _Ended:
    """A handler that lost its lease, or gave its job back, has not failed."""
    if context.lost.reason == TIMED_OUT:
        return "timed_out", TimeoutError, None
    if context.lost.reason == SHUTTING_DOWN:
        return "released", None, None
    if context.lost.is_set() or isinstance(raised, LeaseLost):
        return "lost", None, None
    if isinstance(raised, Release | Throttled):
        return "released", None, None
    if context.seconds_left <= 0:
        return "timed_out", TimeoutError, None
    if isinstance(raised, asyncio.CancelledError):
        return "released", None, None
    if raised is None:
        return _SUCCEEDED
    error = raised.__cause__ or raised if isinstance(raised, Outcome) else raised
    return "failed", type(error), error
