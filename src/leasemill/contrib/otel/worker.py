"""Spans of a worker's own calls: `receive QUEUE` for a claim that granted something, `settle QUEUE` for reports.

They are about many jobs at once, so they link to what made them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.trace import Span, SpanKind

from leasemill.api.observer import Observer, Settled
from leasemill.contrib.otel.carrier import NOWHERE, creation, links_to
from leasemill.contrib.otel.conventions import (
    ATTEMPT,
    CLIENT_ID,
    FENCE,
    KIND,
    MESSAGE_COUNT,
    MESSAGE_ID,
    OUTCOME,
    REASON,
    Named,
    Operation,
    common,
    named,
)
from leasemill.contrib.otel.telemetry import Telemetry
from leasemill.kernel.commands import Expiration, Lease
from leasemill.kernel.model import SECOND

REASON_LENGTH: Final = 200


class WorkerSpans(Observer):
    """Records what a worker reports, as spans that have ended and as measurements."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def worker_began(self, worker_id: str, slots: int, counters: Callable[[], Mapping[str, float]]) -> None:
        self._telemetry.instruments.worker_began(worker_id)

    def worker_ended(self, worker_id: str) -> None:
        self._telemetry.instruments.worker_ended(worker_id)

    def reaper_ran(self, recovered: int) -> None:
        self._telemetry.instruments.reaper_ran(recovered)

    def expired(self, expirations: Sequence[Expiration]) -> None:
        for expiration in expirations:
            self._telemetry.instruments.recovered(expiration.stuck_us / SECOND)

    def claimed(self, leases: Sequence[Lease], took_s: float) -> None:
        if not leases:
            return
        of, span, ended_at = self._begin("receive", leases, took_s)
        span.end(ended_at)
        self._telemetry.instruments.called(of, took_s)
        self._telemetry.instruments.consumed(lease.job.queue for lease in leases)

    def settled(self, batch: Sequence[Settled], took_s: float) -> None:
        of, span, ended_at = self._begin("settle", [one.lease for one in batch], took_s)
        if span.is_recording():
            outcome = common(one.end for one in batch)
            if outcome is not None:
                span.set_attribute(OUTCOME, outcome)
            for one in batch:
                if one.end != "succeeded":
                    _note(span, one, ended_at)
        span.end(ended_at)
        self._telemetry.instruments.called(of, took_s)

    def _begin(self, operation: Operation, leases: Sequence[Lease], took_s: float) -> tuple[Named, Span, int]:
        """A span that began `took_s` ago, and when it ends."""
        first, ended_at = leases[0], time.time_ns()
        of = named(operation, common(lease.job.queue for lease in leases))
        attributes: dict[str, str | int] = {**of.attributes, CLIENT_ID: first.worker}
        context = NOWHERE
        if len(leases) > 1:
            attributes[MESSAGE_COUNT] = len(leases)
        else:
            attributes |= {
                MESSAGE_ID: first.job.id,
                KIND: first.job.kind,
                ATTEMPT: first.attempt,
                FENCE: first.fence,
            }
            context = self._telemetry.context_for(creation(first.job.headers))
        span = self._telemetry.tracer.start_span(
            of.span,
            context,
            SpanKind.CLIENT,
            attributes,
            links_to(lease.job for lease in leases),
            ended_at - int(took_s * 1e9),
        )
        return of, span, ended_at


def _note(span: Span, one: Settled, at: int) -> None:
    attributes: dict[str, str | int] = {
        MESSAGE_ID: one.lease.job.id,
        KIND: one.lease.job.kind,
        ATTEMPT: one.lease.attempt,
    }
    if one.error:
        attributes[REASON] = one.error.partition("\n")[0][:REASON_LENGTH]
    span.add_event(f"leasemill.{one.end}", attributes, at)
