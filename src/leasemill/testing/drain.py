"""Run an app's jobs inside a test: in this process, in memory, without waiting.

    with in_memory(app) as clock:
        charge.enqueue(account="a1", cents=500)
        drain(app, clock)

Without a clock `drain` runs what is due now; with one it also moves the clock on to retries and delayed jobs, until
nothing waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock, SeededEntropy
from leasemill.worker.metrics import Metrics
from leasemill.worker.worker import Worker

ROUNDS_MOST: Final = 10_000


@contextmanager
def in_memory(app: App, *, seed: int | None = None) -> Iterator[ManualClock]:
    """Inside the block the app's jobs go to an empty store in memory whose clock is yours; `seed` fixes its draws."""
    clock = ManualClock()
    store = MemoryStore(clock, None if seed is None else SeededEntropy(seed))
    with app.bound_to(store):
        try:
            yield clock
        finally:
            store.close()


def drain(app: App, clock: ManualClock | None = None, *, concurrency: int = 10) -> Metrics:
    """Run jobs until none is due (or, with a clock, none waits); answers what a worker counts."""
    if _is_in_async_code():
        raise Invalid("drain was called in async code: write `await adrain(app)`")
    return asyncio.run(adrain(app, clock, concurrency=concurrency))


async def adrain(app: App, clock: ManualClock | None = None, *, concurrency: int = 10) -> Metrics:
    """`drain` in async code."""
    total = Metrics()
    for _ in range(ROUNDS_MOST):
        worker = Worker(app, concurrency=concurrency, drain=True, handle_signals=False)
        await worker.run()
        _add(total, worker.metrics)
        due_in_us = None if clock is None else await app.store.arun(c.DueIn(list(worker.queues)))
        if clock is None or due_in_us is None:
            return total
        clock.advance(us=due_in_us)
    raise Invalid(f"after {ROUNDS_MOST:,} rounds jobs still wait: do they enqueue each other without end?")


def _is_in_async_code() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _add(total: Metrics, one: Metrics) -> None:
    for name in Metrics.__slots__:
        setattr(total, name, getattr(total, name) + getattr(one, name))
