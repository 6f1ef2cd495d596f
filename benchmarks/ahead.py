"""How many jobs does a worker hold ahead of its slots, and for how long does each wait for one?

For handlers that take no time, 1 ms and 100 ms, on `file:` and PostgreSQL, default settings. What is held when a worker
is killed waits for proof of its death or for the end of its lease. From the claim's answer to the handler's call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Final, NamedTuple

from benchmarks.children import child, new_url
from benchmarks.report import Bar, table
from leasemill import App, Worker
from leasemill.api.observer import Observer
from leasemill.kernel.commands import Lease

STORES: Final = ("file", "postgres")
HANDLERS: Final = {0: 40_000, 1: 20_000, 100: 600}
"""Milliseconds a handler takes, and how many jobs there are of it."""
SAMPLE_S: Final = 0.005
LONGEST_S: Final = 1.0


class Held(NamedTuple):
    rate: float
    held_median: float
    held_most: int
    p50_ms: float
    p99_ms: float
    given_back: int


class Waits(Observer):
    """From claim to start."""

    def __init__(self) -> None:
        self._claimed_at: dict[str, float] = {}
        self.seconds: list[float] = []

    def claimed(self, leases: Sequence[Lease], took_s: float) -> None:
        now = time.monotonic()
        for lease in leases:
            self._claimed_at[lease.token] = now

    def run_started(self, lease: Lease, waited_s: float | None) -> None:
        self.seconds.append(time.monotonic() - self._claimed_at.pop(lease.token))


def held(url: str, handler_ms: int, jobs: int) -> Held:
    app = App(url)

    @app.job
    async def work(text: str) -> None:
        if handler_ms:
            await asyncio.sleep(handler_ms / 1_000)

    work.enqueue_many(work.call("x" * 80) for _ in range(jobs))
    waits = Waits()
    app.observers.append(waits)
    worker = Worker(app, drain=True, handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    began = time.perf_counter()
    thread.start()
    queued: list[int] = []
    while thread.is_alive():
        thread.join(SAMPLE_S)
        if worker.metrics.started:
            queued.append(worker.metrics.queued)
    rate = jobs / (time.perf_counter() - began)
    assert worker.metrics.succeeded == jobs, worker.metrics
    percentiles = quantiles(waits.seconds, n=100)
    p50_ms, p99_ms = percentiles[49] * 1_000, percentiles[98] * 1_000
    return Held(rate, median(queued), max(queued), p50_ms, p99_ms, worker.metrics.released)


def measured() -> list[Bar]:
    """Prints its table."""
    found: dict[tuple[str, int], Held] = {}
    for store in STORES:
        with new_url(store) as url:
            for handler_ms, jobs in HANDLERS.items():
                found[store, handler_ms] = child(held, url(), handler_ms, jobs)
    table(
        "jobs held ahead of their slots, and how long they wait for one",
        ("", "jobs/s", "held, median", "held, most", "wait p50, ms", "wait p99, ms", "given back"),
        [
            (
                f"{store}, handlers of {handler_ms} ms",
                f"{one.rate:,.0f}",
                f"{one.held_median:,.0f}",
                f"{one.held_most:,}",
                f"{one.p50_ms:,.1f}",
                f"{one.p99_ms:,.1f}",
                f"{one.given_back:,}",
            )
            for (store, handler_ms), one in found.items()
        ],
    )
    return [
        Bar(f"{store}, handlers of {handler_ms} ms: from claim to start, p99, s", one.p99_ms / 1_000, LONGEST_S, False)
        for (store, handler_ms), one in found.items()
    ] + [
        Bar(f"{store}, handlers of {handler_ms} ms: held ahead, of a second's jobs", one.held_most / one.rate, 1, False)
        for (store, handler_ms), one in found.items()
    ]
