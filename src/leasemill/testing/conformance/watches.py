"""Waiting for work: what comes is never missed, and when nothing is there the wait lasts as long as it was to.

A watch may also wake while a job is due that no worker has claimed yet. A watch belongs to the store object that made
it, so these tests keep one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel.commands import Enqueue
from leasemill.store.base import Store, Watch
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import QUEUE, spec
from leasemill.testing.rules import rule

LONG_S = 10.0
SHORT_S = 0.02

Wait = Callable[[Watch, float], bool]


def wait_blocking(watch: Watch, timeout_s: float) -> bool:
    return watch.wait(timeout_s)


def wait_async(watch: Watch, timeout_s: float) -> bool:
    return asyncio.run(_waited(watch, timeout_s))


async def _waited(watch: Watch, timeout_s: float) -> bool:
    return await watch.wait_async(timeout_s)


both_ways = pytest.mark.parametrize("wait", [wait_blocking, wait_async])


def settle(watch: Watch, wait: Wait) -> None:
    """Wait until the watch reports nothing more."""
    for _ in range(10):
        if not wait(watch, SHORT_S):
            return
    raise AssertionError("the watch keeps reporting changes, and there are none")


def enqueue_while(store: Store, wait: Callable[[], bool]) -> bool:
    """Return the result of `wait` while another thread enqueues a job."""
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(wait()))
    waiter.start()
    waiter.join(SHORT_S)
    store.enqueue([spec()])
    waiter.join(LONG_S)
    return answers == [True]


class Watching:
    @rule("C1")
    @both_ways
    def test_who_waits_is_woken_by_an_enqueue_from_another_thread(self, harness: Harness, wait: Wait) -> None:
        store = harness.store
        watch = store.watch([QUEUE])
        settle(watch, wait)
        assert enqueue_while(store, lambda: wait(watch, LONG_S))
        watch.close()

    @rule("C1")
    @both_ways
    def test_a_change_before_the_wait_is_not_missed(self, harness: Harness, wait: Wait) -> None:
        store = harness.store
        watch = store.watch([QUEUE])
        store.enqueue([spec()])
        assert wait(watch, LONG_S)
        assert len(store.claim("worker", [QUEUE], 1)) == 1
        settle(watch, wait)
        store.enqueue([spec("second")])
        assert wait(watch, LONG_S)
        watch.close()

    @rule("C1")
    @both_ways
    def test_a_wait_ends_with_its_time_when_nothing_changes(self, harness: Harness, wait: Wait) -> None:
        watch = harness.store.watch([QUEUE])
        settle(watch, wait)
        assert not wait(watch, SHORT_S)
        assert not wait(watch, 0)
        watch.close()

    @rule("C1")
    @both_ways
    def test_every_watch_is_notified(self, harness: Harness, wait: Wait) -> None:
        store = harness.store
        watches = [store.watch([QUEUE]), store.watch([QUEUE, "other"])]
        store.enqueue([spec()])
        assert [wait(watch, LONG_S) for watch in watches] == [True, True]
        for watch in watches:
            watch.close()

    @rule("C1")
    @both_ways
    def test_a_job_that_is_ready_again_is_notified(self, harness: Harness, wait: Wait) -> None:
        store = harness.store
        store.enqueue([spec()])
        (lease,) = store.claim("worker", [QUEUE], 1)
        watch = store.watch([QUEUE])
        settle(watch, wait)
        harness.clock.advance(us=lease.expires_at)
        assert [one.job_id for one in store.expire()] == ["job"]
        assert wait(watch, LONG_S)
        watch.close()

    @rule("C1")
    def test_many_may_wait_in_one_event_loop(self, harness: Harness) -> None:
        store = harness.store
        watches = [store.watch([QUEUE]) for _ in range(3)]

        async def wait_all() -> list[bool]:
            waiting = [asyncio.ensure_future(watch.wait_async(LONG_S)) for watch in watches]
            await asyncio.sleep(0)
            await store.arun(Enqueue([spec()]))
            return await asyncio.gather(*waiting)

        assert asyncio.run(wait_all()) == [True, True, True]

    @rule("E1")
    def test_a_closed_store_answers_no_command(self, harness: Harness) -> None:
        store = harness.store
        store.enqueue([spec()])
        store.close()
        with pytest.raises(Unavailable):
            store.enqueue([spec("second")])
        with pytest.raises(Unavailable):
            store.job("job")
        store.close()
