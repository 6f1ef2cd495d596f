"""Run an app's jobs inside a test: in this process, in memory, without waiting.

    with in_memory(app) as clock:
        charge.enqueue(account="a1", cents=500)
        drain(app, clock)

Without a clock `drain` runs what is due now; with one it also moves the clock on to retries and delayed jobs, until
nothing waits any more. It fires ticks of schedules that are due, and moves on to later ones with `until=...` alone:
there is always a next tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from leasemill.api.app import App
from leasemill.api.cron import micros
from leasemill.api.policy import is_on_event_loop
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


def drain(
    app: App,
    clock: ManualClock | None = None,
    *,
    until: datetime | timedelta | None = None,
    concurrency: int = 10,
) -> Metrics:
    """Run jobs until none is due (or, with a clock, none waits); returns a worker's counters.

    Ticks of schedules that are due are fired first. The clock is moved on to the next tick only if `until` says how
    far: a time, or how long from now; then it stands there at the end.
    """
    if is_on_event_loop():
        raise Invalid("drain was called in async code: write `await adrain(app)`")
    return asyncio.run(adrain(app, clock, until=until, concurrency=concurrency))


async def adrain(
    app: App,
    clock: ManualClock | None = None,
    *,
    until: datetime | timedelta | None = None,
    concurrency: int = 10,
) -> Metrics:
    """`drain` in async code."""
    async with app.entered_lifespan() as state:
        return await _rounds(app, clock, _instant(clock, until), concurrency, state)


async def _rounds(app: App, clock: ManualClock | None, until_us: int | None, concurrency: int, state: Any) -> Metrics:
    """A worker for each time the clock stands still; the lifespan is entered once."""
    total = Metrics()
    for _ in range(ROUNDS_MOST):
        worker = Worker(app, concurrency=concurrency, drain=True, handle_signals=False)
        worker.process_kinds = frozenset()  # a test's jobs run where the test can see them
        await worker.run_in(state)
        add_metrics(total, worker.metrics)
        if clock is None:
            return total
        due_in_us = await app.store.arun(c.DueIn(list(worker.queues)))
        if until_us is None:
            if due_in_us is None:
                return total
            clock.advance(us=due_in_us)
            continue
        now = clock.now()
        steps = [until_us - now] if due_in_us is None else [until_us - now, due_in_us]
        if (tick_at := await app.store.arun(c.NextTick())) is not None:
            steps.append(tick_at - now)
        if now >= until_us and min(steps[1:], default=1) > 0:
            return total
        clock.advance(us=max(0, min(steps)))
    raise Invalid(f"after {ROUNDS_MOST:,} rounds jobs still wait: do they enqueue each other without end?")


def _instant(clock: ManualClock | None, until: datetime | timedelta | None) -> int | None:
    if until is None:
        return None
    if clock is None:
        raise Invalid("until needs the clock that it moves: write drain(app, clock, until=...)")
    if isinstance(until, timedelta):
        return clock.now() + until // timedelta(microseconds=1)
    if until.tzinfo is None:
        raise Invalid(f"until is {until!r}, which has no time zone: write datetime(..., tzinfo=UTC)")
    return micros(until)


def add_metrics(total: Metrics, one: Metrics) -> None:
    for name in Metrics.__slots__:
        setattr(total, name, getattr(total, name) + getattr(one, name))
