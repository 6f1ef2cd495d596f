"""Spans around what a program asks of the store: `send QUEUE` for an enqueue, `commit QUEUE` for a commit. They are
current meanwhile, so a database's own spans are below them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import Token
from types import TracebackType
from typing import Self, assert_never

from msgspec.structs import replace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, set_span_in_context
from opentelemetry.trace.status import StatusCode

from leasemill.contrib.otel.carrier import PARENT, added, links_to, written
from leasemill.contrib.otel.conventions import (
    ATTEMPT,
    ERROR_TYPE,
    FENCE,
    KIND,
    LANE,
    MESSAGE_COUNT,
    MESSAGE_ID,
    OUTCOME,
    REASON,
    REFUSED,
    Named,
    common,
    error_type,
    named,
)
from leasemill.contrib.otel.telemetry import Telemetry
from leasemill.errors import JobConflict, LeaseLost, Unavailable
from leasemill.kernel import commands as c


class TracedCalls:
    """The tracing that an app's hooks call: `leasemill.api.hooks.Tracing`."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def enqueue(self, command: c.Enqueue) -> SendSpan:
        return SendSpan(self._telemetry, command)

    def commit(self, lease: c.Lease) -> CommitSpan:
        return CommitSpan(self._telemetry, lease)

    def follow_up_headers(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        return added(headers, written())


class CallSpan:
    """A span around a call to the store."""

    part: str

    def __init__(self, telemetry: Telemetry, of: Named) -> None:
        self._telemetry = telemetry
        self._of = of
        self._span: Span = INVALID_SPAN
        self._token: Token[Context] | None = None
        self._error: str | None = None
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 (samplers and processors are the user's)
            self._telemetry.failed(self.part, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_s = time.perf_counter() - self._began
        try:
            if self._token is not None:
                detach(self._token)
            if error is not None:
                self._raised(error)
            self._measure(took_s)
            self._span.end()
        except Exception as failed:  # noqa: BLE001 (processors and exporters are the user's)
            self._telemetry.failed(self.part, failed)

    def _begin(self) -> None:
        raise NotImplementedError

    def _start(self, kind: SpanKind, attributes: dict[str, str | int], links: Sequence[Link] = ()) -> Context:
        self._span = self._telemetry.tracer.start_span(self._of.span, kind=kind, attributes=attributes, links=links)
        context = set_span_in_context(self._span)
        self._token = attach(context)
        return context

    def _raised(self, error: BaseException) -> None:
        self._failed(error_type(type(error)))
        self._span.record_exception(error)

    def _failed(self, error: str, description: str | None = None) -> None:
        self._error = error
        self._span.set_attribute(ERROR_TYPE, error)
        self._span.set_status(StatusCode.ERROR, description)

    def _measure(self, took_s: float) -> None:
        self._telemetry.instruments.called(self._of, took_s, self._error)


class SendSpan(CallSpan):
    """An enqueue of one job or of many: one span, whose context travels with each of them."""

    part = "an enqueue"

    def __init__(self, telemetry: Telemetry, command: c.Enqueue) -> None:
        super().__init__(telemetry, named("send", common(job.queue for job in command.jobs)))
        self.command = command

    def _begin(self) -> None:
        jobs = self.command.jobs
        given = [job for job in jobs if job.headers is not None and PARENT in job.headers]
        attributes: dict[str, str | int] = {**self._of.attributes}
        kind = common(job.kind for job in jobs)
        if kind is not None:
            attributes[KIND] = kind
        if len(jobs) == 1:
            attributes[MESSAGE_ID] = jobs[0].id
            if jobs[0].lane is not None:
                attributes[LANE] = jobs[0].lane
        else:
            attributes[MESSAGE_COUNT] = len(jobs)
        is_context_of_any = len(given) < len(jobs)
        context = self._start(SpanKind.PRODUCER if is_context_of_any else SpanKind.CLIENT, attributes, links_to(given))
        trace = written(context)
        if PARENT in trace and is_context_of_any:
            jobs = [replace(job, headers=added(job.headers, trace)) for job in jobs]
            self.command = replace(self.command, jobs=jobs)

    def answered(self, outcomes: list[c.EnqueueOutcome]) -> None:
        if all(type(outcome) is c.Enqueued for outcome in outcomes):
            return
        try:
            self._answered(outcomes)
        except Exception as error:  # noqa: BLE001 (span processors are the user's)
            self._telemetry.failed(self.part, error)

    def _answered(self, outcomes: list[c.EnqueueOutcome]) -> None:
        conflict = next((outcome for outcome in outcomes if isinstance(outcome, c.Conflict)), None)
        if conflict is not None:
            self._failed(error_type(JobConflict), f"job {conflict.job_id!r} has other content")
        outcome = common(type(outcome).__name__.lower() for outcome in outcomes)
        if outcome is not None:
            self._span.set_attribute(OUTCOME, outcome)
        if len(outcomes) == 1:
            self._span.set_attribute(
                MESSAGE_ID, outcomes[0].job_id
            )  # U1: merged, it is that of the job that has the key

    def _measure(self, took_s: float) -> None:
        super()._measure(took_s)
        self._telemetry.instruments.sent((job.queue for job in self.command.jobs), self._error)


class CommitSpan(CallSpan):
    """The commit of a run, in its handler."""

    part = "a commit"

    def __init__(self, telemetry: Telemetry, lease: c.Lease) -> None:
        super().__init__(telemetry, named("commit", lease.job.queue))
        self._lease = lease

    def _begin(self) -> None:
        lease = self._lease
        attributes: dict[str, str | int] = {
            **self._of.attributes,
            MESSAGE_ID: lease.job.id,
            KIND: lease.job.kind,
            ATTEMPT: lease.attempt,
            FENCE: lease.fence,
        }
        self._start(SpanKind.CLIENT, attributes)

    def answered(self, outcome: c.CommitOutcome | None) -> None:
        if type(outcome) is c.Committed:
            return
        try:
            self._answered(outcome)
        except Exception as error:  # noqa: BLE001 (span processors are the user's)
            self._telemetry.failed(self.part, error)

    def _answered(self, outcome: c.CommitOutcome | None) -> None:
        match outcome:
            case c.Lost(reason=reason):
                self._refused(reason)
            case c.Conflict(job_id=job_id):
                self._failed(error_type(JobConflict), f"follow-up {job_id!r} has other content")
            case None:
                self._failed(error_type(Unavailable))
            case c.Committed():
                pass
            case _:
                assert_never(outcome)

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, LeaseLost):
            self._refused(error.reason)
        else:
            super()._raised(error)

    def _refused(self, reason: str) -> None:
        """Record a refusal, which is not an error: the job is another attempt's, as it should be."""
        self._span.set_attribute(OUTCOME, "refused")
        self._span.add_event(REFUSED, {REASON: str(reason)})
