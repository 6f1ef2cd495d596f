"""The trace context in a job's headers: `traceparent` and `tracestate`, as the W3C writes them, whatever propagators
the program uses elsewhere.

Baggage does not travel: headers are stored, and shown to operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leasemill.kernel.bounds import HEADERS, HEADERS_LENGTH
from leasemill.kernel.model import JobSpec

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
NOWHERE: Final = Context()
"""The context of no span: what begins here is the root of a trace."""
CONTEXTS_KEPT: Final = 1_024
LINKS_MOST: Final = 128
"""The number of links that a span of an SDK keeps by default."""

_propagator: Final = TraceContextTextMapPropagator()


def written(context: Context | None = None) -> dict[str, str]:
    """The headers of this context, by default the current one; none without a span in it."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier


def added(headers: dict[str, str] | None, trace: dict[str, str]) -> dict[str, str] | None:
    """A job's headers with those of a trace. A context that the caller gave stays, and a trace that has no room is left
    out: it must not be why a job is refused."""
    if not headers:
        return trace or None
    if PARENT in headers:
        return headers
    for fields in (trace, {PARENT: trace[PARENT]} if PARENT in trace else {}):
        together = {**headers, **fields}
        if (
            len(together) <= HEADERS
            and sum(len(name) + len(value) for name, value in together.items()) <= HEADERS_LENGTH
        ):
            return together
    return headers


def creation(headers: Mapping[str, str] | None) -> SpanContext | None:
    """Return the span that a job comes from, whose context its headers carry."""
    if not headers or PARENT not in headers:
        return None
    return _read(headers[PARENT], headers.get(STATE))


def links_to(jobs: Iterable[JobSpec]) -> list[Link]:
    """A link to where these come from, one for jobs that were enqueued together."""
    written = {(headers[PARENT], headers.get(STATE)) for job in jobs if (headers := job.headers) and PARENT in headers}
    return [Link(found) for one in islice(written, LINKS_MOST) if (found := _read(*one)) is not None]


@lru_cache(CONTEXTS_KEPT)
def _read(parent: str, state: str | None) -> SpanContext | None:
    """Kept: jobs that are enqueued together have the same."""
    carrier = {PARENT: parent} if state is None else {PARENT: parent, STATE: state}
    found = get_current_span(_propagator.extract(carrier, NOWHERE)).get_span_context()
    return found if found.is_valid else None
