"""What an overview of `leasemill top` says of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, Order, WorkerOrder
from leasemill.operator import overview as overviews
from leasemill.operator.overview import QueueOrder, overview, read
from leasemill.operator.rates import Rates
from leasemill.store.memory import MemoryStore
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore(clock) as store:
        yield store


def spec(job_id: str, queue: str = "mail", **given: Any) -> JobSpec:
    return JobSpec(job_id, queue, "send", **given)


def published(store: MemoryStore, worker: str, **given: Any) -> None:
    fields: dict[str, Any] = {
        "host": "mill",
        "pid": 7,
        "started_at": 100.0,
        "published_at": 160.0,
        "interval_s": 2.0,
        "queues": {"mail": 1},
        "concurrency": 4,
        "is_stopping": False,
        "running": [],
        "counters": {"succeeded": 12.0},
        "version": "1.2.3",
    }
    store.presence.publish(worker, encode_record(WorkerRecord(worker=worker, **(fields | given))))


def fail(store: MemoryStore, job_id: str, error: str) -> None:
    store.enqueue([spec(job_id)])
    (lease,) = store.claim("w", ["mail"], 1)
    store.nack([c.NackReport(lease.job.id, lease.token, error, is_permanent=True)])


def test_a_queue_shows_how_long_its_first_job_has_been_due(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([spec("now"), spec("later", "slow", delay_us=60 * SECOND)])
    clock.advance(s=5)
    shown = overview(read(store), Rates())
    assert [(one.queue, one.oldest_due_s) for one in shown.queues] == [("mail", 5.0), ("slow", None)]
    shown = overview(read(store), Rates(), elapsed_us=60 * SECOND)
    assert [one.oldest_due_s for one in shown.queues] == [65.0, 5.0]


def test_a_worker_that_is_quiet_is_shown_as_such(store: MemoryStore) -> None:
    published(store, "a", order=WorkerOrder("i", Order.QUIET, 1, "ada", "a leak"))
    published(store, "b")
    assert [(one.worker, one.is_quiet) for one in overview(read(store), Rates()).workers] == [("a", True), ("b", False)]


def test_queues_are_sorted_as_asked(store: MemoryStore, clock: ManualClock) -> None:
    store.enqueue([spec("1", "b")])
    clock.advance(s=1)
    store.enqueue([spec("2", "a"), spec("3", "c"), spec("4", "c")])
    names = {
        order: "".join(one.queue for one in overview(read(store), Rates(), order=order).queues) for order in QueueOrder
    }
    assert names == {QueueOrder.NAME: "abc", QueueOrder.READY: "cab", QueueOrder.OLDEST: "bac"}


def test_a_lease_counts_down_between_readings_and_is_at_risk_when_it_expires(store: MemoryStore) -> None:
    published(store, "w")
    store.enqueue([spec("one")])
    (lease,) = store.claim("w", ["mail"], 1)
    reading = read(store)
    left_s = (lease.expires_at - lease.leased_at) / SECOND
    (line,) = overview(reading, Rates()).running
    assert (line.job, line.left_s, line.ran_s, line.is_at_risk) == ("one", left_s, None, False)
    (line,) = overview(reading, Rates(), elapsed_us=2 * SECOND).running
    assert line.left_s == left_s - 2
    (line,) = overview(reading, Rates(), elapsed_us=int(left_s * SECOND) + SECOND).running
    assert (line.left_s, line.is_at_risk) == (-1.0, True)


def test_jobs_of_a_worker_without_a_heartbeat_come_first(store: MemoryStore, clock: ManualClock) -> None:
    published(store, "alive", running=[RunningJob("one", "send", 1, 0.5, 3, 4, "pages")])
    store.enqueue([spec("one"), spec("two")])
    store.claim("alive", ["mail"], 1)
    clock.advance(s=3)
    store.claim("gone", ["mail"], 1)
    shown = overview(read(store), Rates())
    assert [(one.job, one.is_at_risk, one.progress) for one in shown.running] == [
        ("two", True, ""),
        ("one", False, "75% pages"),
    ]
    assert shown.running[0].left_s > shown.running[1].left_s


def test_a_worker_shows_its_slots_its_version_and_its_heartbeat(store: MemoryStore) -> None:
    published(store, "b", running=[RunningJob("one", "send", 1, 0.5)], stuck=[RunningJob("two", "send", 1, 9.5)])
    published(store, "a")
    reading = read(store)
    first, second = overview(reading, Rates()).workers
    assert (first.worker, first.host, first.version, first.slots, first.running) == ("a", "mill", "1.2.3", 4, 0)
    assert (second.running, second.stuck, second.succeeded, second.is_stale) == (1, 1, 12, False)
    stale = overview(reading, Rates(), elapsed_us=30 * SECOND).workers
    assert all(one.is_stale and one.heartbeat_s >= 30 for one in stale)


def test_the_latest_failure_comes_first_whenever_it_was_enqueued(store: MemoryStore, clock: ManualClock) -> None:
    fail(store, "old", "Fail: one")
    clock.advance(s=1)
    fail(store, "new", "Fail: two")
    clock.advance(s=1)
    store.redrive(c.JobFilter(job_ids=("old",)), by="ann", reason="a test")
    (lease,) = store.claim("w", ["mail"], 1)
    store.nack([c.NackReport(lease.job.id, lease.token, "Fail: three", is_permanent=True)])
    clock.advance(s=1)
    shown = overview(read(store), Rates())
    assert [(one.job, one.error, one.seconds_ago) for one in shown.failures] == [
        ("old", "Fail: three", 1.0),
        ("new", "Fail: two", 2.0),
    ]
    assert shown.failures[0].state is JobState.FAILED


def test_failures_are_read_again_when_their_number_changes_or_after_a_while(
    store: MemoryStore, clock: ManualClock
) -> None:
    fail(store, "one", "Fail: one")
    first = read(store)
    clock.advance(s=5)
    assert read(store, first).failures is first.failures
    fail(store, "two", "Fail: two")
    second = read(store, first)
    assert [job.spec.id for job in second.failures.jobs] == ["two", "one"]
    clock.advance(s=10)
    assert read(store, second).failures is not second.failures


def test_an_overview_knows_what_it_shows_a_part_of(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("QUEUES_READ", "LEASES_READ", "FAILURES_READ"):
        monkeypatch.setattr(overviews, limit, 2)
    for number in range(3):
        fail(store, f"failed {number}", "Fail: no")
    assert overview(read(store), Rates()).is_part == ["failures"]
    store.enqueue([spec(f"{number}", f"queue-{number}") for number in range(3)])
    for number in range(3):
        store.claim("w", [f"queue-{number}"], 1)
    shown = overview(read(store), Rates())
    assert shown.is_part == ["queues", "running", "failures"]
    assert (len(shown.queues), len(shown.running), len(shown.failures)) == (2, 2, 2)
    assert (shown.leases_total, shown.failures_total) == (3, 3)


def test_an_empty_store_has_an_empty_overview(store: MemoryStore) -> None:
    shown = overview(read(store), Rates())
    assert (shown.queues, shown.workers, shown.running, shown.failures, shown.is_part) == ([], [], [], [], [])
    assert (shown.in_per_s, shown.out_per_s) == (None, None)
