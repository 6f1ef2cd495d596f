"""Claims begin behind no job: whatever commits late, comes back or is put behind their position is found."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.postgres import positions, watermarks
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import release
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.open_transaction import open_transaction

Admin = psycopg.Connection[Any]
SECOND = 1_000_000
LIMIT_S = 60.0
QUEUE = "q"
NEVER_S = 3600.0


@pytest.fixture(autouse=True)
def moved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watermark moves at every call, whatever was claimed; none is ever checked."""
    monkeypatch.setattr(watermarks, "WORN", 1)
    monkeypatch.setattr(watermarks, "MOVE_EVERY_S", 0.0)
    monkeypatch.setattr(watermarks, "CHECK_EVERY_S", NEVER_S)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as opened:
        opened._maintenance.watermarks._checked_at_s = time.monotonic()
        yield opened


@contextmanager
def calling(postgres_url: str) -> Iterator[Admin]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


def low_at(admin: Admin, schema: str) -> int:
    row = admin.execute(f"select coalesce(max(low_at), 0) from {schema}.watermarks where rank >= 0".encode()).fetchone()
    assert row is not None
    return int(row[0])


def run_some(store: PostgresStore, count: int = 3) -> list[str]:
    """Enqueue, claim and finish jobs; who claims that way leaves dead rows."""
    store.enqueue([JobSpec(store.entropy.new_id(), QUEUE, "k") for _ in range(count)])
    leases = store.claim("w", [QUEUE], 100)
    store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
    return [lease.job.id for lease in leases]


def pass_by(store: PostgresStore, admin: Admin, schema: str) -> int:
    """Run jobs until the watermark has passed everything before now that it may pass."""
    row = admin.execute(f"select {schema}.clock(null)".encode()).fetchone()
    assert row is not None
    began_at, deadline = int(row[0]), time.monotonic() + LIMIT_S
    while (low := low_at(admin, schema)) < began_at:
        assert time.monotonic() < deadline, f"the watermark stays at {low - began_at} µs"
        run_some(store)
        store.expire(10)
        time.sleep(0.1)
    return low


def seen_by_another(postgres_url: str) -> list[str]:
    """What a process claims that knows no position."""
    with PostgresStore(postgres_url) as other:
        return [lease.job.id for lease in other.claim("other", [QUEUE], 100)]


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@rule("C4")
def test_a_watermark_follows_the_jobs_that_were_claimed(store: PostgresStore, schema: str, admin: Admin) -> None:
    pass_by(store, admin, schema)
    store.enqueue([JobSpec("waits", QUEUE, "k"), JobSpec("urgent", QUEUE, "k", priority=9)])
    assert [lease.job.id for lease in store.claim("w", [QUEUE], 1)] == ["urgent"]
    time.sleep(2.1)
    for _ in range(5):
        store.expire(10)
    assert store.totals().counts[JobState.READY] == 1
    assert [view.counts[JobState.READY] for view in store.queues()] == [1]
    assert store.due_in([QUEUE]) == 0
    assert [lease.job.id for lease in store.claim("w", [QUEUE], 1)] == ["waits"]


def test_a_watermark_passes_the_last_jobs_too_although_nothing_is_claimed_after_them(
    postgres_url: str, schema: str, admin: Admin
) -> None:
    """They were claimed sooner after their enqueue than a watermark may follow: it is moved until it is past them."""
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        run_some(store, 100)
        last_at = clock.now()
        store.expire(10)
        clock.advance(s=10)
        store._known.positions.claimed_at_s -= 10
        store.expire(10)
        store.expire(10)
        assert low_at(admin, schema) > last_at


@rule("C1", "C4")
@pytest.mark.parametrize("way", ["using", "function"])
def test_a_transaction_that_commits_long_after_its_enqueue_is_passed_by_no_claim(
    way: str, store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    run_some(store)
    with calling(postgres_url) as caller, PostgresStore(postgres_url) as beside:
        if way == "function":
            caller.execute(f"select {schema}.enqueue('{QUEUE}', 'k', id => 'late')".encode())
        else:
            store.using(caller).enqueue([JobSpec("late", QUEUE, "k")])
        open_until = time.monotonic() + 4.0
        while time.monotonic() < open_until:
            for one in (store, beside):
                assert "late" not in run_some(one)
                one.expire(10)
        caller.commit()
    assert [lease.job.id for lease in store.claim("w", [QUEUE], 100)] == ["late"]


@rule("C1", "C4")
def test_a_watermark_stops_at_a_job_that_commits_after_the_time_was_published(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    with calling(postgres_url) as caller:
        store.using(caller).enqueue([JobSpec("late", QUEUE, "k")])
        time.sleep(2.5)  # the time that is published is two seconds ago
        run_some(store)
        store.expire(10)
        store.expire(10)
        assert low_at(admin, schema) == 0, "it has moved while the transaction is open"
        with PostgresStore(postgres_url) as beside:  # the time was published before this process looked at any writer
            run_some(beside)
            beside.expire(10)
            assert low_at(admin, schema) == 0, "another process has moved it without a proof"
        caller.commit()
    for _ in range(3):
        store.expire(10)
    assert low_at(admin, schema) > 0
    assert seen_by_another(postgres_url) == ["late"]


@rule("C1")
def test_a_job_that_commits_late_is_found_while_claims_go_on_and_find_others(
    store: PostgresStore, postgres_url: str
) -> None:
    """No claim comes back empty, which would look again at once."""
    run_some(store)
    with calling(postgres_url) as caller:
        store.using(caller).enqueue([JobSpec("late", QUEUE, "k")])
        time.sleep(2 * positions.BEHIND_US / SECOND)
        assert "late" not in run_some(store)
        caller.commit()
    began = time.monotonic()
    while "late" not in run_some(store):
        assert time.monotonic() < began + LIMIT_S
    # once a second there is a full look, whatever the claims find


@rule("C1", "C4")
def test_an_enqueue_that_waited_for_another_of_its_id_is_passed_by_no_claim(
    store: PostgresStore, postgres_url: str, schema: str
) -> None:
    """The function takes the time before it waits, and holds no lock on ready until it has waited."""
    enqueue = f"select {schema}.enqueue('{QUEUE}', 'k', id => 'late')".encode()

    def run_for(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert "late" not in run_some(store)
            store.expire(10)

    store.enqueue([JobSpec("early", QUEUE, "k")])
    with calling(postgres_url) as first, calling(postgres_url) as second, ThreadPoolExecutor(1) as thread:
        first.execute(enqueue)
        waiting = thread.submit(second.execute, enqueue)
        time.sleep(3.0)  # no time is published before that of the one that waits is old
        run_for(1.0)
        assert not waiting.done()
        first.rollback()
        waiting.result(LIMIT_S)
        run_for(1.0)
        second.commit()
    assert [lease.job.id for lease in store.claim("w", [QUEUE], 100)] == ["late"]


def released(store: PostgresStore, lease: c.Lease) -> None:
    store.release([c.ReleaseReport(lease.job.id, lease.token)])


def redriven(store: PostgresStore, lease: c.Lease) -> None:
    store.nack([c.NackReport(lease.job.id, lease.token, "broke", is_permanent=True)])
    store.redrive(c.JobFilter(job_ids=(lease.job.id,)), by="ada", reason="because")


def retried(store: PostgresStore, lease: c.Lease) -> None:
    store.nack([c.NackReport(lease.job.id, lease.token, "broke", delay_us=0)])


@rule("C1", "C3", "O2")
@pytest.mark.parametrize("put_back", [released, redriven, retried])
def test_a_job_that_another_process_puts_back_is_found_by_all(
    put_back: Callable[[PostgresStore, c.Lease], None],
    store: PostgresStore,
    postgres_url: str,
    schema: str,
    admin: Admin,
) -> None:
    with PostgresStore(postgres_url) as holder:
        holder.enqueue([JobSpec("back", QUEUE, "k")])
        (lease,) = holder.claim("holder", [QUEUE], 1)
        pass_by(store, admin, schema)
        put_back(holder, lease)
        assert store.totals().counts[JobState.READY] == 1
        assert [view.counts[JobState.READY] for view in store.queues()] == [1]
        assert store.due_in([QUEUE]) == 0
        assert [one.job.id for one in store.claim("w", [QUEUE], 10)] == ["back"]


@rule("C1", "C3")
def test_a_job_that_is_being_put_back_holds_its_watermark_until_it_commits(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    store.enqueue([JobSpec("back", QUEUE, "k")])
    (lease,) = store.claim("holder", [QUEUE], 1)
    query = f"select count(*) from {schema}.watermarks where next_at > %s".encode()
    while admin.execute(query, [lease.created_at]).fetchone() == (0,):
        run_some(store)
        store.expire(10)
    with open_transaction(store) as transaction:
        report = c.ReleaseReport(lease.job.id, lease.token)
        assert transaction.run_verb(release.release(store._context, c.Release([report])))
        for _ in range(5):
            store.expire(10)
    assert seen_by_another(postgres_url) == ["back"]


@rule("C1", "L7")
def test_a_job_whose_lease_expires_behind_the_watermark_is_found(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    store.enqueue([JobSpec("back", QUEUE, "k", policy=Policy(lease_ttl_us=500_000))])
    store.claim("dies", [QUEUE], 1)
    pass_by(store, admin, schema)
    eventually(lambda: "back" in seen_by_another(postgres_url) or store.job("back").attempt == 2)  # type: ignore[union-attr]


@rule("C1", "N4")
def test_the_next_head_of_a_lane_behind_the_watermark_is_found(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    with PostgresStore(postgres_url) as holder:
        holder.enqueue([JobSpec(one, QUEUE, "k", lane="x") for one in ("first", "second", "third")])
        (lease,) = holder.claim("holder", [QUEUE], 1)
        pass_by(store, admin, schema)
        holder.ack([c.AckReport(lease.job.id, lease.token)])
        (lease,) = store.claim("w", [QUEUE], 10)
        assert lease.job.id == "second"
        pass_by(store, admin, schema)
        holder.cancel(["second"], by="ada", reason="because")
        assert seen_by_another(postgres_url) == ["third"]


@rule("C8", "N4")
def test_the_next_head_of_a_lane_that_is_not_handed_over_is_found_behind_the_watermark(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    with PostgresStore(postgres_url) as holder:
        holder.enqueue([JobSpec(one, QUEUE, "k", lane="x") for one in ("first", "second")])
        (lease,) = holder.claim("holder", [QUEUE], 1)
        pass_by(store, admin, schema)
        holder.enqueue([JobSpec("urgent", QUEUE, "k", priority=9)])
        ack = c.Ack([c.AckReport(lease.job.id, lease.token)])
        _, leases = asyncio.run(holder.ack_and_claim(ack, c.Claim("holder", [QUEUE], 1, ["token"], "request")))
        assert leases is not None
        assert [one.job.id for one in leases] == ["urgent"]
        assert seen_by_another(postgres_url) == ["second"]


@rule("C1", "N3")
def test_a_lanes_job_that_is_admitted_behind_the_watermark_is_found(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin
) -> None:
    run_some(store)
    with calling(postgres_url) as caller:
        store.using(caller).enqueue([JobSpec("late", QUEUE, "k", lane="x")])
        time.sleep(2.5)
        caller.commit()
    admin.execute(f"insert into {schema}.watermarks values (%s, 9, %s)".encode(), [QUEUE, time.time_ns() // 1000])
    store.expire(10)
    assert seen_by_another(postgres_url) == ["late"]


@rule("L8", "C1")
def test_jobs_of_after_a_step_back_of_the_clock_are_found(postgres_url: str, schema: str, admin: Admin) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        clock.advance(s=3600)
        for _ in range(5):
            run_some(store)
            clock.advance(s=5)
            store.expire(10)
    assert low_at(admin, schema) > 0
    behind = ManualClock()
    with PostgresStore(postgres_url, clock=behind) as store:
        store.enqueue([JobSpec("a", QUEUE, "k"), JobSpec("b", QUEUE, "k")])
        assert store.totals().counts[JobState.READY] == 2
        assert [lease.job.id for lease in store.claim("w", [QUEUE], 1)] == ["a"]
        store.expire(10)  # checks the watermarks: it is the first of its process
    with PostgresStore(postgres_url, clock=clock) as store:
        assert [lease.job.id for lease in store.claim("w", [QUEUE], 2)] == ["a", "b"], "by this clock a has expired"


@rule("C1", "C7")
def test_jobs_that_come_in_every_way_while_watermarks_move_are_all_found_soon(
    postgres_url: str, schema: str, admin: Admin
) -> None:
    """Long and short transactions, retries, releases, lanes; the claims go on beside, in three processes."""
    ends_at, ids, done = time.monotonic() + 7.0, set[str](), set[str]()
    lock, produced = threading.Lock(), threading.Event()
    setup = PostgresStore(postgres_url)
    setup.enqueue([JobSpec("first", QUEUE, "k")])
    ids.add("first")

    def produce(seed: int) -> None:
        draw = random.Random(seed)
        with PostgresStore(postgres_url) as own, calling(postgres_url) as caller:
            for number in range(10_000):
                if time.monotonic() > ends_at:
                    return
                jobs = [
                    JobSpec(
                        f"{seed}-{number}-{one}",
                        QUEUE,
                        "k",
                        lane=draw.choice([None, None, "x", "y"]),
                        priority=draw.choice([0, 0, 5]),
                        run_at=draw.choice([None, 1]),
                    )
                    for one in range(3)
                ]
                if draw.random() < 0.5:
                    own.using(caller).enqueue(jobs)
                else:
                    for job in jobs:
                        call = f"select {schema}.enqueue('{QUEUE}', 'k', id => %s, lane => %s, priority => %s)"
                        caller.execute(call.encode(), [job.id, job.lane, job.priority])
                time.sleep(draw.choice([0, 0, 0.01, 0.4, 3.5]))
                caller.commit()
                with lock:
                    ids.update(job.id for job in jobs)

    def work(seed: int) -> None:
        draw, deadline = random.Random(seed), ends_at + LIMIT_S
        with PostgresStore(postgres_url) as own:
            own._maintenance.watermarks._checked_at_s = time.monotonic()
            while time.monotonic() < deadline:
                if produced.is_set() and len(done) == len(ids):
                    return
                for lease in own.claim(f"w{seed}", [QUEUE], draw.choice([1, 5, 20])):
                    match draw.choices(["ack", "nack", "release", "hold"], [80, 8, 8, 4])[0]:
                        case "ack":
                            own.ack([c.AckReport(lease.job.id, lease.token)])
                            done.add(lease.job.id)
                        case "nack":
                            own.nack(
                                [c.NackReport(lease.job.id, lease.token, "broke", delay_us=draw.randrange(SECOND))]
                            )
                        case "release":
                            released(own, lease)
                        case _:
                            time.sleep(draw.uniform(0, 0.5))
                            released(own, lease)
                own.expire(10)
                time.sleep(0.01)

    with ThreadPoolExecutor(6) as executor:
        producing = [executor.submit(produce, seed) for seed in range(3)]
        working = [executor.submit(partial(work, seed)) for seed in range(3)]
        for one in producing:
            one.result()
        assert low_at(admin, schema) > 0, "no watermark has moved: this test shows nothing"
        produced.set()
        for one in working:
            one.result()
    assert ids - done == set()
    setup.close()
    assert check(admin, schema) == []
