"""The four metrics of the messaging conventions, and those of workers: who is there, and what reapers find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from leasemill.contrib.otel.conventions import ERROR_TYPE, INSTANCE_ID, Named, named

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
STALE_S: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
RECOVERED: Final = (0.0, 1.0, 10.0, 100.0, 1_000.0)


class Instruments:
    """The metrics, which are measured whether spans are sampled or not."""

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

        self._reaper_runs = meter.create_counter(
            "leasemill.reaper.runs", "{run}", "Number of searches for expired leases."
        )
        self._reaper_recovered = meter.create_histogram(
            "leasemill.reaper.recovered.count",
            "{job}",
            "Number of jobs recovered from expired leases, per run of the reaper.",
            explicit_bucket_boundaries_advisory=RECOVERED,
        )
        self._reaper_stale = meter.create_histogram(
            "leasemill.reaper.stale.duration",
            "s",
            "Duration for which recovered jobs had been without a holder.",
            explicit_bucket_boundaries_advisory=STALE_S,
        )
        self._workers: dict[str, dict[str, str]] = {}
        meter.create_observable_gauge(
            "leasemill.worker.info",
            [self._at_work],
            "{worker}",
            "Always 1, for each worker that runs in this process.",
        )

    # Workers

    def worker_began(self, worker_id: str) -> None:
        self._workers = {**self._workers, worker_id: {INSTANCE_ID: worker_id}}

    def worker_ended(self, worker_id: str) -> None:
        self._workers = {known: of for known, of in self._workers.items() if known != worker_id}

    def reaper_ran(self, recovered: int) -> None:
        self._reaper_runs.add(1, self._of_worker())
        self._reaper_recovered.record(recovered, self._of_worker())

    def recovered(self, stale_s: float) -> None:
        """A job, from a lease that had expired so long ago."""
        self._reaper_stale.record(stale_s, self._of_worker())

    def _of_worker(self) -> dict[str, str]:
        """The worker of this process; nothing, where there are several."""
        workers = self._workers
        return next(iter(workers.values())) if len(workers) == 1 else {}

    def _at_work(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(1, of) for of in self._workers.values()]

    # Messages

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
