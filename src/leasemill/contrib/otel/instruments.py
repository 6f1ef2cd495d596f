"""The four metrics of the messaging conventions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.metrics import Meter

from leasemill.contrib.otel.conventions import ERROR_TYPE, Named, named

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class Instruments:
    """What is measured, whether its spans are sampled or not."""

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def called(self, of: Named, took_s: float, error: str | None = None) -> None:
        """A call to the store has ended."""
        self._operation.record(took_s, _failed(of.attributes, error))

    def processed(self, of: Named, took_s: float, error: str | None = None) -> None:
        """A handler has ended."""
        self._process.record(took_s, _failed(of.measured, error))

    def sent(self, queues: Iterable[str], error: str | None = None) -> None:
        for queue, count in _counted(queues):
            self._sent.add(count, _failed(named("send", queue).measured, error))

    def consumed(self, queues: Iterable[str]) -> None:
        for queue, count in _counted(queues):
            self._consumed.add(count, named("receive", queue).measured)


def _failed(attributes: dict[str, str], error: str | None) -> dict[str, str]:
    return attributes if error is None else {**attributes, ERROR_TYPE: error}


def _counted(queues: Iterable[str]) -> Iterable[tuple[str, int]]:
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue] = counts.get(queue, 0) + 1
    return counts.items()
