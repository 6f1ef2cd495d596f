"""A process that forks after it has used a store: parent and child both go on."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.store import PostgresStore
from tests.lab.forks import CHILD_S, forked
from tests.process.test_fork import forked as use_and_fork

CALLERS = 8


@pytest.mark.timeout(120)
def test_calls_watches_and_commits_work_in_a_forked_child_and_in_its_parent(postgres_url: str) -> None:
    done = use_and_fork(postgres_url)
    assert done.returncode == 0, done.stderr


def used(postgres_url: str) -> PostgresStore:
    """In every way that takes a lock."""
    store = PostgresStore(postgres_url)
    store.enqueue([JobSpec("parent", "mail", "send")])
    (lease,) = store.claim("w", ["mail"], 1)
    store.ack([c.AckReport("parent", lease.token)])
    store.watch(["mail"])
    store._retention_loop._due_at_s = 0.0
    store.run(c.Expire(10))
    return store


def works(store: PostgresStore) -> bool:
    """For many threads at a time, each with the first call of the process."""
    begins = threading.Barrier(CALLERS)
    enqueued: list[c.EnqueueOutcome] = []

    def enqueue(number: int) -> None:
        begins.wait()
        enqueued.extend(store.enqueue([JobSpec(f"job-{number}", "mail", "send")]))

    callers = [threading.Thread(target=enqueue, args=(number,)) for number in range(CALLERS)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    leases = store.claim("w", ["mail"], CALLERS)
    acked = store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
    is_woken = store.watch(["mail"]).wait(0.01)
    store.close()
    return len(enqueued) == len(acked) == CALLERS and not is_woken


def has_nothing_of_its_parent(store: PostgresStore) -> bool:
    """Before any of its threads asks."""
    return (
        store._connections.take_idle() is None and store._listener._thread is None and store._notifier._thread is None
    )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_and_threads_of_its_own_whichever_of_its_callers_comes_first(
    postgres_url: str,
) -> None:
    with used(postgres_url) as store:
        assert forked(partial(has_nothing_of_its_parent, store))
        assert forked(partial(works, store))
        assert store._listener.is_listening.wait(CHILD_S)
        assert store.enqueue([JobSpec("later", "mail", "send")]) == [c.Enqueued("later")]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_lock_that_a_thread_of_its_parent_held(postgres_url: str) -> None:
    with used(postgres_url) as store:
        held: list[AbstractContextManager[Any]] = [
            store._connections._pool._changed,
            store._commits._pool._changed,
            store._commits._async_pool._changed,
            store._known.positions._lock,
            store._maintenance.watermarks._lock,
            store._retention_loop._starting,
            store._signal._changed,
            store._notifier._changed,
            store._listener._lock,
            store._listener.ends._lock,
            store._listener.cancellations._lock,
            store._batches._lock,
            *(line._lock for line in store._batches._lines.values()),
            store._threads._work.lock,
        ]
        with ExitStack() as holding:
            for one in held:
                holding.enter_context(one)
            does_work = forked(partial(works, store))
        assert does_work
