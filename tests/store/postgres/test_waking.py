"""Waking on postgresql://: a notification that names the queue saves the question, any other leads to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.store.postgres.steps import Verb
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.waking.listen import Arrivals


class Counting(PostgresStore):
    """Counts how often a watch asks."""

    asked = 0

    def due_in(self, queues: Sequence[str]) -> int | None:
        self.asked += 1
        return super().due_in(queues)


@pytest.fixture
def waiting(postgres_url: str) -> Iterator[Counting]:
    with Counting(postgres_url) as store:
        yield store


def await_listening(store: PostgresStore) -> None:
    assert store._listener.is_listening.wait(30)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_due_job_of_another_process_wakes_without_a_question(waiting: Counting, postgres_url: str) -> None:
    watch = waiting.watch(["mail"])
    await_listening(waiting)
    with PostgresStore(postgres_url) as producer:
        producer.enqueue([JobSpec("one", "mail", "k")])
        until(lambda: waiting._listener.arrivals.count == 1)
        assert watch.wait(30)
        assert waiting.asked == 0
        assert [lease.job.id for lease in waiting.claim("w", ["mail"], 5)] == ["one"]
        assert not watch.wait(0)


def test_a_job_for_later_or_for_another_queue_does_not_wake(waiting: Counting, postgres_url: str) -> None:
    watch = waiting.watch(["mail"])
    await_listening(waiting)
    with PostgresStore(postgres_url) as producer:
        producer.run(c.Enqueue([JobSpec("later", "mail", "k", delay_us=60 * SECOND), JobSpec("other", "print", "k")]))
        until(lambda: waiting._listener.arrivals.count == 1)
        assert not watch.wait(0.05)
    assert waiting.asked > 0


def test_a_decision_notifies_only_where_a_job_may_have_become_claimable(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals change nothing for those who wait, and nobody waits for a claim in a queue of offsets."""
    with PostgresStore(postgres_url) as store:
        notified: list[str] = []
        store.enqueue([JobSpec(job_id, "mail", "k", lane="lane") for job_id in ("first", "second")])
        (lease,) = store.claim("w", ["mail"], 1)

        def wake() -> Verb[None]:
            notified.append("notified")
            yield from ()

        monkeypatch.setattr(store._notifier, "wake", wake)
        store.ack([c.AckReport("first", "another")])
        store.acquire([c.AcquireRequest("offsets", "domain", 0, "w", "0-token")])
        store.ack([c.AckReport("offsets/domain/0", "0-token")])
        assert notified == []
        store.cancel(["first"], by="ada", reason="not needed")
        assert notified == ["notified"]
        assert [one.job.id for one in store.claim("w", ["mail"], 1)] == ["second"]
        assert isinstance(store.ack([c.AckReport("first", lease.token)])[0], c.Lost)


def test_arrivals_are_kept_by_queue_and_time() -> None:
    arrivals = Arrivals()
    arrivals.add("a")
    assert arrivals.has_any(["b", "a"], 0)
    assert not arrivals.has_any(["b"], 0)
    assert not arrivals.has_any(["a"], arrivals.count)
