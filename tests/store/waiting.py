"""Waiting for a job's end and for cancellations, across processes: what `file:` and `postgresql://` have in common."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasemill import App, Context
from leasemill.api.handle import JobHandle
from leasemill.kernel.commands import AckReport
from leasemill.kernel.model import Job, JobSpec
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.testing.rules import rule
from tests.lab.processes import wait_until
from tests.worker.support import until, working

LONG_S = 30.0
QUEUE = "work"


def ack_next(url: str, result: bytes) -> None:
    """In another process: claim the next job and acknowledge it."""
    with open_store(url) as store:
        (lease,) = store.claim("worker", [QUEUE], 1)
        store.ack([AckReport(lease.job.id, lease.token, result)])


def cancel(url: str, job_id: str) -> None:
    """In another process."""
    with open_store(url) as store:
        store.cancel([job_id], by="ada", reason="because")


def wait_in_child(store: Store, answers: Any) -> None:
    answers.put("waits")
    answers.put(JobHandle[Any](store, "job", None).result(timeout=LONG_S))


def in_process(start_method: str, target: Any, *arguments: Any) -> Any:
    context: Any = multiprocessing.get_context(start_method)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


class WaitingSuite:
    """A subclass supplies `url` and `without_looking`, which leaves nothing but notifications to wake by."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with open_store(url) as store:
            yield store

    @pytest.fixture
    def handle(self, store: Store) -> JobHandle[Any]:
        store.enqueue([JobSpec("job", QUEUE, "kind")])
        return JobHandle(store, "job", None)

    def is_ready_to_be_woken(self, store: Store) -> bool:
        """Whether whoever waits has been registered."""
        raise NotImplementedError

    def is_left_behind(self, store: Store) -> bool:
        """Whether anything of a waiter is still there."""
        raise NotImplementedError

    async def _until_ready(self, store: Store) -> None:
        await asyncio.to_thread(wait_until, lambda: self.is_ready_to_be_woken(store), "the waiter", LONG_S)

    @rule("O9")
    @pytest.mark.usefixtures("without_looking")
    def test_the_ack_of_another_process_wakes_by_itself(self, url: str, store: Store, handle: JobHandle[Any]) -> None:
        with ThreadPoolExecutor(1) as executor:
            waiter = executor.submit(handle.result, LONG_S)
            wait_until(lambda: self.is_ready_to_be_woken(store), "the waiter", LONG_S)
            other = in_process("spawn", ack_next, url, b"1")
            assert waiter.result(LONG_S) == 1
        other.join(LONG_S)

    @rule("O9")
    @pytest.mark.usefixtures("without_looking")
    def test_tasks_are_woken_by_another_process(self, url: str, store: Store, handle: JobHandle[Any]) -> None:
        async def wait() -> list[Any]:
            tasks = [asyncio.ensure_future(handle.aresult(LONG_S)) for _ in range(10)]
            await self._until_ready(store)
            in_process("spawn", ack_next, url, b"1")
            return await asyncio.gather(*tasks)

        assert asyncio.run(asyncio.wait_for(wait(), LONG_S)) == [1] * 10

    @rule("O9")
    @pytest.mark.usefixtures("without_looking")
    def test_a_forked_child_can_wait(self, url: str, store: Store, handle: JobHandle[Any]) -> None:
        with ThreadPoolExecutor(1) as executor:  # the parent has a waiter's thread of its own by now
            waiter = executor.submit(handle.result, 0.5)
            wait_until(lambda: self.is_ready_to_be_woken(store), "the waiter", LONG_S)
            with pytest.raises(TimeoutError):
                waiter.result(LONG_S)
        answers = multiprocessing.get_context("fork").Queue()
        child = in_process("fork", wait_in_child, store, answers)
        assert answers.get(timeout=LONG_S) == "waits"
        ack_next(url, b"7")
        assert answers.get(timeout=LONG_S) == 7
        child.join(LONG_S)
        store.enqueue([JobSpec("second", QUEUE, "kind")])
        with pytest.raises(TimeoutError):
            JobHandle[Any](store, "second", None).result(timeout=0.01)

    @rule("O9")
    def test_who_gives_up_leaves_nothing_behind(self, store: Store, handle: JobHandle[Any]) -> None:
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.05)

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await handle.aresult(timeout=0.05)
            task = asyncio.ensure_future(handle.aresult())
            await self._until_ready(store)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(give_up())
        wait_until(lambda: not self.is_left_behind(store), "nothing to be left behind", LONG_S)

    @rule("O9")
    def test_a_due_job_that_nobody_works_on_is_not_looked_at_again_and_again(
        self, store: Store, handle: JobHandle[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[str] = []
        look = store.job

        def counted(job_id: str) -> Job | None:
            looks.append(job_id)
            return look(job_id)

        monkeypatch.setattr(store, "job", counted)
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.5)
        assert len(looks) <= 6

    @rule("O10")
    @pytest.mark.usefixtures("without_looking")
    def test_a_cancellation_by_another_store_is_reported(self, url: str, store: Store, handle: JobHandle[Any]) -> None:
        store.claim("worker", [QUEUE], 1)
        called = threading.Event()
        subscription = store.watch_cancellations(called.set)
        while called.wait(0.1):
            called.clear()
        with open_store(url) as other:
            other.cancel(["job"], by="ada", reason="because")
        assert called.wait(LONG_S)
        subscription.close()

    @rule("O10")
    @pytest.mark.usefixtures("without_looking")
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_cancellation_by_another_process_stops_the_handler(
        self, url: str, store: Store, is_async: bool
    ) -> None:
        app = App(store=store)
        saw: list[str | None] = []

        @app.job(lease=3_600, name="waits_async")  # the next heartbeat is far away
        async def waits_async(ctx: Context) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                saw.append(ctx.lost.reason)
                raise

        @app.job(lease=3_600, name="waits_sync")
        def waits_sync(ctx: Context) -> None:
            assert ctx.lost.wait(LONG_S)
            saw.append(ctx.lost.reason)

        handle = await (waits_async if is_async else waits_sync).aenqueue()
        async with working(app) as worker:
            await until(lambda: worker.metrics.running, limit_s=LONG_S)
            other = in_process("spawn", cancel, url, handle.id)
            await until(lambda: saw, limit_s=LONG_S)
        other.join(LONG_S)
        assert saw == ["cancelled"]
