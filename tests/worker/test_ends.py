"""X8: every way in which a job is lost, by every way in which its handler ends, wherever it runs.

Each test is one way and one place: all ends run beside each other in one worker, and the store's record of each is
compared. The store's clock is set by hand, so that no lease ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from leasemill import JobHandle, JobState, Worker
from leasemill.kernel.model import AbortReason, ExecutionStatus, Job
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worker import ends
from tests.worker.support import FaultyStore, until

LEASE_S: Final = 60
SHORT_LEASE_S: Final = {"thread": 3, "async": 3, "process": 12}
"""Where the test waits for the end of the lease; processes take their time to start."""
FEW: Final = (*ends.IN_TIME, "returns a value", "fails", "commits", "leaves its commit")
"""Each process is an interpreter: not one for every end."""
PLACES: Final = {
    "thread": (ends.in_thread, (*ends.IN_TIME, *ends.LATE)),
    "async": (ends.on_the_loop, (*ends.IN_TIME, *ends.LATE)),
    "process": (ends.in_process, FEW),
}
Handles = dict[str, JobHandle[Any]]


async def by_shutdown(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    worker.stop()


async def at_once(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    worker.stop(now=True)


async def by_cancellation(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    store.cancel([handle.id for handle in running.values()], by="ann", reason="not needed")


async def by_expiry(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    clock.advance(timedelta(seconds=LEASE_S + 1))


async def by_an_unavailable_store(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    store.is_away = True
    await until(lambda: worker.metrics.lost == len(running), "the leases to be lost")
    store.is_away = False


async def by_timeout(worker: Worker, store: FaultyStore, clock: ManualClock, running: Handles) -> None:
    """It comes by itself, and the retry is not due before the clock moves."""


Way = Callable[[Worker, FaultyStore, ManualClock, Handles], Awaitable[None]]
WAYS: Final[dict[Way, tuple[JobState, int, AbortReason]]] = {
    by_shutdown: (JobState.READY, 0, AbortReason.RELEASED),
    at_once: (JobState.READY, 0, AbortReason.RELEASED),
    by_cancellation: (JobState.CANCELLED, 0, AbortReason.CANCELLED),
    by_expiry: (JobState.READY, 0, AbortReason.EXPIRED),
    by_an_unavailable_store: (JobState.READY, 0, AbortReason.RELEASED),
    by_timeout: (JobState.READY, 1, AbortReason.FAILED),
}
"""What becomes of a job whose handler ends after the loss: its state, the retries it has used, how the run ended."""


def what_became_of(job: Job) -> tuple[object, ...]:
    (execution,) = job.executions
    return job.state, job.retries, execution.reason, job.result


@rule("X8")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_after_its_loss_nothing_a_handler_does_ends_its_job(
    way: Way, place: str, clock: ManualClock, store: FaultyStore
) -> None:
    job_type, how = PLACES[place]
    lease = SHORT_LEASE_S[place] if way is by_an_unavailable_store else LEASE_S
    timeout = 2 if way is by_timeout else 600
    is_stopped = way in (by_shutdown, at_once)
    ends.refused.clear()
    with ends.app.bound_to(store):
        handles: Handles = {end: job_type.options(lease=lease, timeout=timeout, retry=3).enqueue(end) for end in how}
        worker = Worker(
            ends.app, handle_signals=False, concurrency=len(how), shutdown_timeout=3, heartbeat_interval=0.2
        )
        task = asyncio.create_task(worker.run())
        running = {end: handle for end, handle in handles.items() if end != "ends before"}
        try:
            await until(lambda: handles["ends before"].status() is JobState.SUCCEEDED, "the first")
            if way is not by_timeout:
                await until(lambda: all(map(has_begun, running.values())), "the others")
                store.pause("default", by="ann", reason="nothing runs again")
            await way(worker, store, clock, running)
            if is_stopped:
                await asyncio.wait_for(task, 30)
            else:
                await until(lambda: all(map(has_ended, running.values())), "the store's word on each")
                await until(lambda: worker.metrics.running == 0, "the handlers")
        finally:
            worker.stop(now=True)
            await asyncio.wait_for(task, 30)
        found = {end: what_became_of(handle.record()) for end, handle in handles.items()}
    in_time = {end: (JobState.SUCCEEDED, 0, None, f'"{result}"'.encode()) for end, result in ends.IN_TIME.items()}
    late = {end: (*WAYS[way], None) for end in how if end in ends.LATE}
    assert found == in_time | late
    if place != "process":
        assert sorted(ends.refused) == ["commits", "leaves its commit"]


def has_begun(handle: JobHandle[Any]) -> bool:
    job = handle.record()
    wanted = ExecutionStatus.COMMITTED if "commits before" in str(job.spec.payload) else ExecutionStatus.STARTED
    return bool(job.executions) and job.executions[0].status is wanted


def has_ended(handle: JobHandle[Any]) -> bool:
    return handle.status() is not JobState.LEASED
