"""What `memory:` has beside the contract: how it is opened, its own time and randomness, and threads."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest

from leasemill.errors import Invalid, Unavailable
from leasemill.kernel.commands import AckReport, Enqueued
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.store.factory import open_store
from leasemill.store.memory import MemoryStore
from leasemill.store.notifications import Signal
from leasemill.store.system import SteadyClock, SystemEntropy
from leasemill.testing.clock import ManualClock, SeededEntropy
from leasemill.testing.rules import rule


def spec(job_id: str = "job") -> JobSpec:
    return JobSpec(job_id, "queue", "kind")


def test_a_url_opens_an_empty_store_of_its_own() -> None:
    with_job, without = open_store("memory:"), open_store("memory:")
    with_job.enqueue([spec()])
    assert with_job.job("job") is not None
    assert without.job("job") is None


@pytest.mark.parametrize("url", ["memory", "", "memori:", "nothing://here"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        open_store(url)


def test_a_store_closes_at_the_end_of_its_block() -> None:
    with MemoryStore() as store:
        assert store.enqueue([spec()]) == [Enqueued("job")]
    with pytest.raises(Unavailable):
        store.job("job")


@rule("I6")
def test_drawn_ids_are_uuids_of_version_7_and_rise() -> None:
    entropy = SystemEntropy()
    ids = [uuid.UUID(entropy.new_id()) for _ in range(100)]
    assert {one.version for one in ids} == {7}
    assert ids == sorted(set(ids))


@rule("I2")
def test_drawn_tokens_are_all_different() -> None:
    tokens = SystemEntropy().tokens(1_000)
    assert len(set(tokens)) == 1_000
    assert {len(token) for token in tokens} == {20}
    assert SystemEntropy().tokens(0) == []
    assert 0 <= SystemEntropy().jitter() < 1


@rule("L8")
def test_the_clock_is_wall_time_once_and_steady_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    assert abs(clock.now() - time.time_ns() // 1_000) < 10 * SECOND
    before = clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.now() < before + 10 * SECOND


def test_a_seed_decides_what_is_drawn() -> None:
    def leases(seed: int) -> list[str]:
        store = MemoryStore(ManualClock(), SeededEntropy(seed))
        store.enqueue([spec(f"job-{number}") for number in range(5)])
        return [lease.token for lease in store.claim("worker", ["queue"], 5)]

    assert leases(1) == leases(1) != leases(2)


@rule("C7")
def test_threads_share_a_store_and_every_job_runs_once() -> None:
    store = MemoryStore()
    ran: list[str] = []
    begin = threading.Barrier(5)

    def produce() -> None:
        begin.wait(10)
        for number in range(200):
            store.enqueue([spec(f"job-{number}")])

    def consume(worker: str) -> None:
        begin.wait(10)
        watch = store.watch(["queue"])
        while store.totals().counts[JobState.SUCCEEDED] < 200:
            for lease in store.claim(worker, ["queue"], 3):
                ran.append(lease.job.id)
                store.ack([AckReport(lease.job.id, lease.token)])
            watch.wait(0.005)

    threads = [threading.Thread(target=consume, args=(f"worker-{number}",)) for number in range(4)]
    threads.append(threading.Thread(target=produce))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(ran) == sorted(f"job-{number}" for number in range(200))


def test_a_signal_outlives_the_loop_of_who_waited() -> None:
    """A wait that its loop has given up does not break the next notice."""
    signal = Signal()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(signal.watch().wait_async(10), 0.01)

    asyncio.run(give_up())
    watch = signal.watch()
    signal.notify()
    assert watch.wait(0)
    assert not watch.wait(0)
