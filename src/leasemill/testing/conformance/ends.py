"""Waiting for a job's end: every end wakes, a retry does not end the wait, and no end slips between two looks.

A watch belongs to the store object that made it, so these tests keep one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import pytest

from leasemill.api.handle import JobHandle, has_ended
from leasemill.errors import LeasemillError, NotFound, Unavailable
from leasemill.kernel.commands import Ack, AckReport, Claim, JobFilter, Lease, NackReport, StartReport
from leasemill.kernel.model import JobState, Policy
from leasemill.store.base import Store
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import OPERATOR, QUEUE, WHY, spec
from leasemill.testing.rules import rule

LONG_S = 30.0
SHORT_S = 0.02
MANY = 20

Result: TypeAlias = Callable[[JobHandle[Any]], Any]


def result_blocking(handle: JobHandle[Any]) -> Any:
    return handle.result(timeout=LONG_S)


def result_async(handle: JobHandle[Any]) -> Any:
    return asyncio.run(handle.aresult(timeout=LONG_S))


both_ways = pytest.mark.parametrize("result", [result_blocking, result_async])


def handle_of(store: Store, job_id: str = "job") -> JobHandle[Any]:
    return JobHandle(store, job_id, None)


def claimed(store: Store, job_id: str = "job", **policy: Any) -> Lease:
    store.enqueue([spec(job_id, policy=Policy(**policy))])
    (lease,) = store.claim("worker", [QUEUE], 1)
    return lease


def ack(store: Store, lease: Lease, result: bytes = b"42") -> None:
    store.ack([AckReport(lease.job.id, lease.token, result)])


@contextmanager
def waiting(store: Store, result: Result, job_id: str = "job") -> Iterator[Future[Any]]:
    """Somebody who waits for the job in another thread, and has looked at it and not found its end."""
    looked = Looked(store)
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(result, handle_of(cast(Store, looked), job_id))
        assert looked.twice.wait(LONG_S)
        yield waiter


class Looked:
    """A store that reports when a job was looked at for the second time, which is after the watch was made."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looks = 0
        self.twice = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def job(self, job_id: str) -> Any:
        found = self._store.job(job_id)
        self._count()
        return found

    async def ajob(self, job_id: str) -> Any:
        found = await self._store.ajob(job_id)
        self._count()
        return found

    def _count(self) -> None:
        self._looks += 1
        if self._looks > 1:
            self.twice.set()


class EndsBetween:
    """A store in which the job ends just before, or just after, somebody begins to watch for it."""

    def __init__(self, store: Store, end: Callable[[], None], *, is_before: bool) -> None:
        self._store = store
        self._end = end
        self._is_before = is_before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def watch_end(self, job_id: str) -> Any:
        if self._is_before:
            self._end()
        watch = self._store.watch_end(job_id)
        if not self._is_before:
            self._end()
        return watch


class Ending:
    @rule("O9")
    @both_ways
    def test_an_ack_wakes_whoever_waits(self, harness: Harness, result: Result) -> None:
        store = harness.store
        lease = claimed(store)
        with waiting(store, result) as waiter:
            ack(store, lease)
            assert waiter.result(LONG_S) == 42

    @rule("O9")
    @both_ways
    def test_the_ack_of_a_lanes_head_wakes_whoever_waits(self, harness: Harness, result: Result) -> None:
        store = harness.store
        store.enqueue([spec(lane="A"), spec("second", lane="A")])
        (lease,) = store.claim("worker", [QUEUE], 1)
        with waiting(store, result) as waiter:
            ack(store, lease)
            assert waiter.result(LONG_S) == 42

    @rule("O9")
    @both_ways
    def test_a_final_failure_wakes_whoever_waits(self, harness: Harness, result: Result) -> None:
        store = harness.store
        lease = claimed(store)
        with waiting(store, result) as waiter:
            store.nack([NackReport("job", lease.token, "broke", jitter=0, is_permanent=True)])
            with pytest.raises(LeasemillError, match="broke"):
                waiter.result(LONG_S)

    @rule("O9")
    @both_ways
    def test_an_expiry_that_quarantines_wakes_whoever_waits(self, harness: Harness, result: Result) -> None:
        store = harness.store
        lease = claimed(store, max_expirations=1)
        store.start([StartReport("job", lease.token)])
        with waiting(store, result) as waiter:
            harness.clock.advance(us=lease.expires_at)
            assert [one.state for one in store.expire()] == [JobState.DEAD]
            with pytest.raises(LeasemillError, match="quarantined"):
                waiter.result(LONG_S)

    @rule("O9")
    @both_ways
    @pytest.mark.parametrize("is_leased", [True, False])
    def test_a_cancellation_wakes_whoever_waits(self, harness: Harness, result: Result, is_leased: bool) -> None:
        store = harness.store
        store.enqueue([spec()])
        if is_leased:
            store.claim("worker", [QUEUE], 1)
        with waiting(store, result) as waiter:
            store.cancel(["job"], by=OPERATOR, reason=WHY)
            with pytest.raises(LeasemillError, match="cancelled"):
                waiter.result(LONG_S)

    @rule("O9")
    def test_a_purge_wakes_who_watches(self, harness: Harness) -> None:
        store = harness.store
        ack(store, claimed(store))
        watch = store.watch_end("job")
        while watch.wait(SHORT_S):
            pass
        store.purge(JobFilter(queue=QUEUE, states=frozenset({JobState.SUCCEEDED})), by=OPERATOR, reason=WHY)
        assert watch.wait(LONG_S)
        watch.close()
        with pytest.raises(NotFound):
            handle_of(store).result(timeout=LONG_S)

    @rule("O9")
    @both_ways
    def test_a_retry_does_not_end_the_wait(self, harness: Harness, result: Result) -> None:
        store = harness.store
        lease = claimed(store)
        with waiting(store, result) as waiter:
            store.nack([NackReport("job", lease.token, "broke", jitter=0)])
            (again,) = store.claim("worker", [QUEUE], 1)
            harness.clock.advance(us=again.expires_at)
            assert [one.state for one in store.expire()] == [JobState.READY]
            (last,) = store.claim("worker", [QUEUE], 1)
            assert not waiter.done()
            ack(store, last)
            assert waiter.result(LONG_S) == 42

    @rule("O9")
    @both_ways
    @pytest.mark.parametrize("is_before", [True, False])
    def test_no_end_slips_between_looking_and_watching(self, harness: Harness, result: Result, is_before: bool) -> None:
        store = harness.store
        lease = claimed(store)
        racing = EndsBetween(store, lambda: ack(store, lease), is_before=is_before)
        assert result(handle_of(cast(Store, racing))) == 42

    @rule("O9")
    @both_ways
    def test_the_result_of_a_job_that_has_ended_needs_no_watch(self, harness: Harness, result: Result) -> None:
        store = harness.store
        lease = claimed(store)
        ack(store, lease)

        def refuse() -> None:
            raise AssertionError("it was watched")

        assert result(handle_of(cast(Store, EndsBetween(store, refuse, is_before=True)))) == 42

    @rule("O9")
    def test_every_thread_that_waits_for_a_job_is_woken(self, harness: Harness) -> None:
        store = harness.store
        lease = claimed(store)
        looked = [Looked(store) for _ in range(MANY)]
        with ThreadPoolExecutor(MANY) as executor:
            waiters = [executor.submit(result_blocking, handle_of(cast(Store, one))) for one in looked]
            assert all(one.twice.wait(LONG_S) for one in looked)
            ack(store, lease)
            assert [waiter.result(LONG_S) for waiter in waiters] == [42] * MANY

    @rule("O9")
    def test_tasks_of_one_loop_wait_for_many_jobs(self, harness: Harness) -> None:
        store = harness.store
        store.enqueue([spec(f"job-{number}") for number in range(MANY)])

        async def all_of_them() -> list[Any]:
            tasks = [
                asyncio.ensure_future(handle_of(store, f"job-{number}").aresult(timeout=LONG_S))
                for number in range(MANY)
                for _ in range(2)
            ]
            leases = await store.arun(Claim("worker", [QUEUE], MANY, store.entropy.tokens(MANY), "request"))
            for lease in leases:
                number = lease.job.id.removeprefix("job-").encode()
                await store.arun(Ack([AckReport(lease.job.id, lease.token, number)]))
            return await asyncio.gather(*tasks)

        assert asyncio.run(all_of_them()) == [number for number in range(MANY) for _ in range(2)]

    @rule("O9")
    def test_a_task_that_waits_can_be_cancelled(self, harness: Harness) -> None:
        store = harness.store
        store.enqueue([spec()])

        async def give_up() -> None:
            task = asyncio.ensure_future(handle_of(store).aresult())
            await asyncio.sleep(SHORT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(give_up())

    @rule("O9")
    @both_ways
    def test_who_waits_learns_that_the_store_was_closed(self, harness: Harness, result: Result) -> None:
        store = harness.store
        store.enqueue([spec()])
        with waiting(store, result) as waiter:
            store.close()
            with pytest.raises(Unavailable):
                waiter.result(LONG_S)

    @rule("O9")
    def test_a_job_that_was_redriven_is_waited_for_again(self, harness: Harness) -> None:
        store = harness.store
        lease = claimed(store)
        with waiting(store, result_blocking) as waiter:
            store.nack([NackReport("job", lease.token, "broke", jitter=0, is_permanent=True)])
            with pytest.raises(LeasemillError, match="broke"):
                waiter.result(LONG_S)
        store.redrive(JobFilter(job_ids=("job",)), by=OPERATOR, reason=WHY)
        (again,) = store.claim("worker", [QUEUE], 1)
        with waiting(store, result_blocking) as waiter:
            assert not has_ended(handle_of(store).record())
            ack(store, again)
            assert waiter.result(LONG_S) == 42

    @rule("O10")
    def test_the_cancellation_of_a_running_job_is_reported(self, harness: Harness) -> None:
        store = harness.store
        claimed(store)
        called = threading.Event()
        subscription = store.watch_cancellations(called.set)
        while called.wait(SHORT_S):
            called.clear()
        store.cancel(["job"], by=OPERATOR, reason=WHY)
        assert called.wait(LONG_S)
        subscription.close()
