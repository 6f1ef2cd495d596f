"""The tracer, the instruments and the settings that the parts of an instrumented app share."""

from __future__ import annotations

import logging
import threading
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, Tracer, set_span_in_context

from leasemill.contrib.otel.carrier import NOWHERE
from leasemill.contrib.otel.instruments import Instruments

log = logging.getLogger("leasemill.otel")


class Telemetry:
    """The destination of spans and measurements, and whether attempts are part of the trace that enqueued their job."""

    def __init__(self, tracer: Tracer, instruments: Instruments, *, one_trace: bool) -> None:
        self.tracer: Final = tracer
        self.instruments: Final = instruments
        self._one_trace = one_trace
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def context_for(self, creation: SpanContext | None) -> Context:
        """Return the context in which a span about one job begins: below the span that enqueued it, or a root."""
        if self._one_trace and creation is not None:
            return set_span_in_context(NonRecordingSpan(creation), NOWHERE)
        return NOWHERE

    def failed(self, part: str, error: Exception) -> None:
        """A sampler, a processor or an exporter raised: logged once for each part, and of no consequence for jobs."""
        with self._lock:
            if part in self._failed:
                return
            self._failed.add(part)
        log.error(
            "OpenTelemetry failed to record %s, which changes nothing for the jobs; it is not logged again: %r",
            part,
            error,
            exc_info=error,
        )
