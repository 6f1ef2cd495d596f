"""Jobs in OpenTelemetry: spans from the enqueue to the report of every attempt, and metrics, by the messaging
conventions.

    from leasemill.contrib.otel import instrument

    instrument(app)

Needs `opentelemetry-api` alone: without an SDK nothing is recorded. What must never happen: that telemetry changes what
becomes of a job. What is recorded, and why: docs/decisions/0033.
"""

from __future__ import annotations

try:
    import opentelemetry.trace as _  # noqa: F401
except ImportError as error:
    raise ImportError("leasemill.contrib.otel needs opentelemetry-api: pip install 'leasemill[otel]'") from error

from leasemill.contrib.otel.instrumentation import instrument

__all__ = ["instrument"]
