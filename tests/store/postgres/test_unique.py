"""Unique keys on PostgreSQL: races, users' transactions, enqueue in SQL, and what maintenance leaves.

RACES=10000 races longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from leasemill import App, Debounce, JobState, Throttle, Unique
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, Rules, UniqueKey, UniqueUntil
from leasemill.store.postgres.admin.check import check, rebuild
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.retention import BATCH, Retention
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule

RACES = int(os.environ.get("RACES", "300"))
Connection = psycopg.Connection[Any]


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as made:
        yield made


@pytest.fixture
def mine(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


@pytest.fixture
def other(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


def unique(job_id: str, key: str = "key", until: UniqueUntil = UniqueUntil.ENDED, **fields: Any) -> JobSpec:
    return JobSpec(job_id, "q", "k", rules=Rules(UniqueKey(key, until)), **fields)


def debounced(job_id: str, version: int) -> JobSpec:
    rules = Rules(UniqueKey("key", UniqueUntil.STARTED, at_most_us=60 * SECOND))
    return JobSpec(job_id, "q", "k", b"%d" % version, delay_us=5 * SECOND, rules=rules)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as executor:
        return [one.result() for one in [executor.submit(run, work) for work in works]]


def is_waiting(admin: Connection) -> bool:
    """Whether some session waits for a lock of another."""
    row = admin.execute("select count(*) from pg_stat_activity where wait_event_type = 'Lock'").fetchone()
    return row is not None and row[0] > 0


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit_s, "it did not come to that"
        time.sleep(0.01)


def later(work: Callable[[], Any]) -> Future[Any]:
    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


# Races ---------------------------------------------------------------------------------------------------------


@rule("U1")
@pytest.mark.parametrize("are_new", [False, True])
def test_of_producers_that_race_for_a_key_one_makes_the_job(store: PostgresStore, are_new: bool) -> None:
    for number in range(RACES):
        key = f"key-{number}"
        outcomes = at_once(
            *(
                lambda name=name, key=key: store.run(c.Enqueue([unique(f"{name}-{key}", key)], are_new=are_new))[0]
                for name in ("a", "b")
            )
        )
        made = [one for one in outcomes if isinstance(one, c.Enqueued)]
        assert len(made) == 1, outcomes
        assert [one.job_id for one in outcomes] == [made[0].job_id] * 2
    assert sum(store.totals().counts.values()) == RACES


@rule("U1", "U2")
def test_keys_are_taken_again_and_again_while_jobs_end(store: PostgresStore) -> None:
    """Each call is the job's that holds the key, or made one: none is swallowed by a job that has ended before it."""
    stop, ended, problems = threading.Event(), dict[str, float](), list[str]()

    def work() -> None:
        while not stop.is_set():
            for lease in store.claim("w", ["q"], 5):
                store.ack([c.AckReport(lease.job.id, lease.token)])
                ended[lease.job.id] = time.monotonic()

    def produce(name: str) -> None:
        for number in range(RACES):
            asked_at = time.monotonic()
            (outcome,) = store.run(c.Enqueue([unique(f"{name}-{number}", f"key-{number % 3}")], are_new=True))
            if isinstance(outcome, c.Merged) and ended.get(outcome.job_id, asked_at) < asked_at:
                problems.append(f"{name}-{number} was merged with {outcome.job_id}, which had ended")

    with ThreadPoolExecutor(1) as executor:
        working = executor.submit(work)
        at_once(lambda: produce("a"), lambda: produce("b"), lambda: produce("c"))
        stop.set()
        working.result()
    assert problems == []
    assert all(view.counts[JobState.LEASED] == 0 for view in store.queues())


@rule("U1")
def test_batches_with_keys_in_any_order_do_not_deadlock(store: PostgresStore) -> None:
    def produce(name: str, numbers: range) -> None:
        for turn in range(RACES // 10):
            store.enqueue([unique(f"{name}-{turn}-{number}", f"key-{number}") for number in numbers])

    at_once(lambda: produce("a", range(20)), lambda: produce("b", range(19, -1, -1)))
    assert sum(store.totals().counts.values()) == 20


@rule("U8")
def test_no_call_is_lost_between_the_last_arguments_and_the_claim(store: PostgresStore) -> None:
    """Whatever is replaced while workers claim: the last call of each key has run, or waits."""
    stop, ran = threading.Event(), list[bytes]()

    def work() -> None:
        while not stop.is_set():
            for lease in store.claim("w", ["q"], 5):
                ran.append(lease.job.payload)
                store.ack([c.AckReport(lease.job.id, lease.token)])

    rules = Rules(UniqueKey("key", UniqueUntil.STARTED, at_most_us=2_000))
    with ThreadPoolExecutor(1) as executor:
        working = executor.submit(work)
        for number in range(RACES):
            store.enqueue([JobSpec(f"call-{number}", "q", "k", b"%d" % number, delay_us=1_000, rules=rules)])
        until(lambda: b"%d" % (RACES - 1) in ran)
        stop.set()
        working.result()
    assert len(ran) == len(set(ran))
    assert [int(one) for one in ran] == sorted(int(one) for one in ran)


# Users' transactions -------------------------------------------------------------------------------------------


@rule("U1")
@pytest.mark.parametrize("commits", [True, False])
def test_who_meets_an_open_enqueue_waits_and_gets_the_key_if_it_is_rolled_back(
    store: PostgresStore, mine: Connection, admin: Connection, commits: bool
) -> None:
    assert store.using(mine).enqueue([unique("first")]) == [c.Enqueued("first")]
    second = later(lambda: store.enqueue([unique("second")]))
    until(lambda: is_waiting(admin))
    assert not second.done()
    mine.commit() if commits else mine.rollback()
    assert second.result(20) == [c.Merged("first") if commits else c.Enqueued("second")]
    jobs = [job.spec.id for job in store.jobs().jobs]
    assert jobs == (["first"] if commits else ["second"])


@rule("U1")
def test_a_deadlock_of_two_transactions_is_reported(
    store: PostgresStore, mine: Connection, other: Connection, admin: Connection
) -> None:
    store.using(mine).enqueue([unique("a", "A")])
    store.using(other).enqueue([unique("b", "B")])
    waiting = later(lambda: store.using(mine).enqueue([unique("a2", "B")]))
    until(lambda: is_waiting(admin))
    failed = 0
    try:
        store.using(other).enqueue([unique("b2", "A")])
    except errors.DeadlockDetected:
        other.rollback()
        failed += 1
    try:
        waiting.result(20)
    except errors.DeadlockDetected:
        mine.rollback()
        failed += 1
    assert failed == 1


@rule("U2")
def test_a_job_does_not_start_before_the_transaction_ends_that_was_merged_with_it(
    store: PostgresStore, mine: Connection
) -> None:
    """What the transaction wrote is seen by the run that stands for its call."""
    store.enqueue([unique("waits", until=UniqueUntil.STARTED)])
    assert store.using(mine).enqueue([unique("mine", until=UniqueUntil.STARTED)]) == [c.Merged("waits")]
    assert store.claim("w", ["q"], 1) == []
    mine.commit()
    assert [lease.job.id for lease in store.claim("w", ["q"], 1)] == ["waits"]
    assert store.using(mine).enqueue([unique("mine", until=UniqueUntil.STARTED)]) == [c.Enqueued("mine")]
    mine.rollback()


@rule("U8")
def test_a_replacement_that_is_rolled_back_leaves_the_job_as_it_was(store: PostgresStore, mine: Connection) -> None:
    store.enqueue([debounced("first", 1)])
    before = store.job("first")
    assert store.using(mine).enqueue([debounced("second", 2)]) == [c.Merged("first", is_replaced=True)]
    mine.rollback()
    assert store.job("first") == before
    store.using(mine).enqueue([debounced("second", 2)])
    mine.commit()
    replaced = store.job("first")
    assert replaced is not None
    assert (replaced.spec.payload, replaced.replaced) == (b"2", 1)


@rule("U5")
def test_a_users_commit_merges_its_follow_ups(postgres_url: str, store: PostgresStore) -> None:
    store.enqueue([unique("holder"), JobSpec("parent", "p", "k")])
    (lease,) = store.claim("w", ["p"], 1)
    block = store.block(lease, 10)
    assert block.begin() is None
    followup = c.Followup("q", "k", rules=Rules(UniqueKey("key")))
    free = c.Followup("q", "k", rules=Rules(UniqueKey("free")))
    command = c.Commit("parent", lease.token, None, [followup, free, free])
    assert block.commit(command) == c.Committed("parent", ("holder", "parent/1", "parent/1"))
    assert store.run(command) == c.Committed("parent", ("holder", "parent/1", "parent/1"), is_repeat=True)


# In SQL --------------------------------------------------------------------------------------------------------


def enqueue_in_sql(connection: Connection, schema: str, **given: object) -> str:
    named = ", ".join(f"{name} => %({name})s" for name in given)
    row = connection.execute(f"select {schema}.enqueue('q', 'k', {named})".encode(), given).fetchone()
    assert row is not None
    return str(row[0])


@rule("U1", "U2", "U3")
def test_enqueue_in_sql_takes_and_meets_keys_as_python_does(
    store: PostgresStore, mine: Connection, schema: str, admin: Connection
) -> None:
    assert enqueue_in_sql(mine, schema, id="first", unique_key="key") == "first"
    mine.commit()
    assert store.enqueue([unique("second")]) == [c.Merged("first")]
    assert store.enqueue([JobSpec("first", "q", "k", rules=Rules(UniqueKey("key")))]) == [c.Duplicate("first")]
    assert store.enqueue([JobSpec("first", "q", "k")]) == [c.Conflict("first")]
    (lease,) = store.claim("w", ["q"], 1)
    assert enqueue_in_sql(mine, schema, unique_key="key") == "first"
    store.ack([c.AckReport("first", lease.token)])
    assert enqueue_in_sql(mine, schema, id="first", unique_key="key") == "first"
    with pytest.raises(errors.UniqueViolation):
        enqueue_in_sql(mine, schema, id="first", unique_key="other")
    mine.rollback()
    assert enqueue_in_sql(mine, schema, id="third", unique_key="key", unique_keep="1 hour") == "third"
    mine.commit()
    (lease,) = store.claim("w", ["q"], 1)
    store.ack([c.AckReport("third", lease.token)])
    assert store.enqueue([unique("fourth")]) == [c.Merged("third")]
    assert enqueue_in_sql(mine, schema, id="s1", unique_key="s", unique_until="started") == "s1"
    mine.commit()
    assert enqueue_in_sql(mine, schema, unique_key="s", unique_until="started") == "s1"
    mine.commit()
    store.claim("w", ["q"], 1)
    assert enqueue_in_sql(mine, schema, id="s2", unique_key="s", unique_until="started") == "s2"
    mine.commit()
    store.enqueue([unique("python", "p")])
    assert enqueue_in_sql(mine, schema, id="sql", unique_key="p") == "python"
    assert enqueue_in_sql(mine, schema, id="python", unique_key="p", payload="{}") == "python"
    mine.rollback()
    assert check(admin, schema) == []


@rule("U1")
@pytest.mark.parametrize("commits", [True, False])
def test_enqueue_in_sql_waits_for_an_open_one(
    store: PostgresStore, mine: Connection, other: Connection, admin: Connection, schema: str, commits: bool
) -> None:
    enqueue_in_sql(mine, schema, id="first", unique_key="key")
    second = later(lambda: enqueue_in_sql(other, schema, id="second", unique_key="key"))
    until(lambda: is_waiting(admin))
    mine.commit() if commits else mine.rollback()
    assert second.result(20) == ("first" if commits else "second")
    other.commit()
    assert sum(store.totals().counts.values()) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"unique_key": ""},
        {"unique_key": "a\nb"},
        {"unique_key": "x" * 201},
        {"unique_key": "k", "unique_until": "done"},
        {"unique_key": "k", "unique_keep": "-1 hour"},
        {"unique_until": "started"},
        {"unique_keep": "1 hour"},
    ],
)
def test_enqueue_in_sql_refuses_what_python_does(mine: Connection, schema: str, given: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        enqueue_in_sql(mine, schema, **given)


# What stays ----------------------------------------------------------------------------------------------------


def rows_of(admin: Connection, schema: str) -> list[str]:
    found = admin.execute(f"select key from {schema}.unique_keys order by key".encode()).fetchall()
    return [key for (key,) in found]


@rule("U6", "U3")
def test_rows_of_keys_that_nobody_holds_are_deleted_and_no_others(
    postgres_url: str, admin: Connection, schema: str
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        kept = Rules(UniqueKey("kept", keep_us=60 * SECOND))
        store.enqueue([unique("done", "done"), unique("live", "live"), JobSpec("kept", "q", "k", rules=kept)])
        for lease in store.claim("w", ["q"], 3):
            if lease.job.id != "live":
                store.ack([c.AckReport(lease.job.id, lease.token)])
        store.purge(c.JobFilter(), by="ada", reason="why")
        retention, run = Retention(store._known), store._thread_driver.run
        assert run(retention.forget_keys()) == 3 < BATCH
        assert rows_of(admin, schema) == ["kept", "live"]
        assert store.enqueue([unique("again", "kept")]) == [c.Merged("kept")]
        clock.advance(us=60 * SECOND)
        run(retention.forget_keys())
        assert rows_of(admin, schema) == ["live"]
        assert store.enqueue([unique("again", "kept"), unique("more", "live")])[1] == c.Merged("live")


@rule("U6", "U1")
def test_rows_of_a_key_that_one_queue_holds_and_another_does_not_are_told_apart(
    store: PostgresStore, admin: Connection, schema: str
) -> None:
    store.enqueue([JobSpec(queue, queue, "k", rules=Rules(UniqueKey("same"))) for queue in ("a", "b", "c")])
    (lease,) = store.claim("w", ["b"], 1)
    store.ack([c.AckReport("b", lease.token)])
    assert store._thread_driver.run(Retention(store._known).forget_keys()) == 3
    found = admin.execute(f"select queue, key from {schema}.unique_keys order by queue".encode()).fetchall()
    assert found == [("a", "same"), ("c", "same")]
    admin.execute(f"delete from {schema}.unique_keys".encode())
    rebuild(admin, schema)
    assert check(admin, schema) == []
    for queue, outcome in (("a", c.Merged("a")), ("b", c.Enqueued("again b")), ("c", c.Merged("c"))):
        assert store.enqueue([JobSpec(f"again {queue}", queue, "k", rules=Rules(UniqueKey("same")))]) == [outcome]


@rule("U6")
def test_rows_of_keys_can_be_rebuilt(store: PostgresStore, admin: Connection, schema: str) -> None:
    store.enqueue([unique("live", "live"), unique("gone", "gone")])
    admin.execute(f"delete from {schema}.unique_keys".encode())
    assert [line for line in check(admin, schema) if "unique key" in line] != []
    rebuild(admin, schema)
    assert check(admin, schema) == []
    assert store.enqueue([unique("other", "live")]) == [c.Merged("live")]


@rule("U1", "U8", "U10")
def test_apps_use_all_of_it_on_postgresql(postgres_url: str, admin: Connection, schema: str) -> None:
    with App(postgres_url) as app:

        @app.job(unique=Unique(by="user", keep=3600))
        def sync(user: str, what: int) -> None: ...

        @app.job(unique=Debounce(by="user", wait=5, at_most=60))
        def index(user: str, what: int) -> None: ...

        @app.job(unique=Throttle(by="user", per=3600, trailing=True))
        def tell(user: str, what: int) -> None: ...

        for job in (sync, index, tell):
            handles = [job.enqueue("ann", number) for number in range(3)] + [job.enqueue("bob", 1)]
            assert [handle.is_duplicate for handle in handles] in (
                [False, True, True, False],
                [False, False, True, False],
            )
        counts = app.store.totals().counts
        assert counts[JobState.READY] == 2 + 2 + 3
    assert check(admin, schema) == []
