"""An ack with a claim on PostgreSQL: one transaction where all is plain, and never more than the two would do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import QUEUE_LIMIT, JobSpec, JobState, LimitTerms
from leasemill.store.postgres.admin.check import check as check_tables
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule

LONG_S = 30.0


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as store:
        yield store


def enqueue(store: PostgresStore, *job_ids: str, lane: str = "a", **fields: Any) -> None:
    store.enqueue([JobSpec(job_id, "q", "k", lane=lane, **fields) for job_id in job_ids])


async def handed(store: PostgresStore, *leases: c.Lease, limit: int = 10) -> tuple[list[c.AckOutcome], list[c.Lease]]:
    *tokens, request = store.entropy.tokens(limit + 1)
    reports = [c.AckReport(lease.job.id, lease.token) for lease in leases]
    outcomes, granted = await store.ack_and_claim(c.Ack(reports), c.Claim("w", ["q"], limit, tokens, request))
    assert granted is not None
    return outcomes, granted


def hand_over(store: PostgresStore, *leases: c.Lease, limit: int = 10) -> list[str]:
    return [lease.job.id for lease in asyncio.run(handed(store, *leases, limit=limit))[1]]


def commits(admin: psycopg.Connection[Any]) -> int:
    """Transactions that wrote something, so far: each takes a number."""
    row = admin.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::int8").fetchone()
    assert row is not None
    return int(row[0])


@rule("C8", "N4")
def test_it_is_one_transaction_and_takes_no_thread(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    enqueue(store, *(f"a{number}" for number in range(20)))
    (lease,) = store.claim("w", ["q"], 1)

    async def every(lease: c.Lease) -> list[str]:
        ran = []
        for _ in range(19):
            _, (lease,) = await handed(store, lease)
            ran.append(lease.job.id)
        return ran

    threads = set(threading.enumerate())  # stores of other tests may have some
    before = commits(admin)
    assert asyncio.run(every(lease)) == [f"a{number}" for number in range(1, 20)]
    assert commits(admin) - before == 19
    assert not [one.name for one in set(threading.enumerate()) - threads if one.name.startswith("leasemill-postgres")]


@rule("C8", "T1")
def test_a_limit_that_another_process_has_set_holds(store: PostgresStore, postgres_url: str) -> None:
    enqueue(store, "a1", "a2")
    enqueue(store, "b1", "b2", lane="b")
    first, second = store.claim("w", ["q"], 2)
    with PostgresStore(postgres_url) as operators:
        operators.set_limit(QUEUE_LIMIT + "q", LimitTerms(places=1), by="ada", reason="because")
    assert hand_over(store, first) == []
    assert hand_over(store, second) == ["a2"]


@rule("C8", "N2")
def test_a_job_that_lines_up_while_the_lanes_lock_is_waited_for_is_handed_over(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    enqueue(store, "a1", "a2")
    (lease,) = store.claim("w", ["q"], 1)
    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"select from {schema}.lanes for update".encode())
        other.execute(f"update {schema}.waiting set turn = turn + 1000".encode())
        under_way = pool.submit(hand_over, store, lease)
        wait_until(lambda: waits(admin))
        other.commit()
        assert under_way.result(LONG_S) == ["a2"]
    assert check_tables(admin, schema) == []


@rule("C8", "C5", "L6")
@pytest.mark.parametrize("pool_size", [1, 10])
def test_a_session_that_is_ended_under_it_orphans_nothing(
    postgres_url: str, admin: psycopg.Connection[Any], schema: str, pool_size: int
) -> None:
    with PostgresStore(f"{postgres_url}&pool_size={pool_size}") as store:
        enqueue(store, "a1", "a2", "a3")
        (lease,) = store.claim("w", ["q"], 1)
        with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other:
            other.execute(f"select from {schema}.lanes for update".encode())
            with ThreadPoolExecutor(1) as pool:
                under_way = pool.submit(asyncio.run, handed(store, lease))
                wait_until(lambda: waits(admin))
                admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'leasemill' and wait_event_type = 'Lock'"
                )
                wait_until(lambda: waits(admin))
                other.rollback()
                outcomes, leases = under_way.result(LONG_S)
        assert outcomes == [c.Acked("a1", c.LaneHint("a2", None))]
        assert [(one.job.id, one.attempt) for one in leases] == [("a2", 1)]
        assert store.totals().counts[JobState.LEASED] == 1


@rule("C8", "N1", "N2", "C7")
@pytest.mark.parametrize("is_urgent", [False, True])
def test_workers_that_race_for_lanes_keep_their_order(
    postgres_url: str, admin: psycopg.Connection[Any], schema: str, *, is_urgent: bool
) -> None:
    lanes, length, workers = "abcdefgh", 25, 4
    ran: dict[str, list[int]] = defaultdict(list)
    guard = threading.Lock()
    with PostgresStore(postgres_url) as store:
        for lane in lanes:
            enqueue(store, *(f"{lane}{number:03}" for number in range(length)), lane=lane)

    def work(name: int) -> None:
        with PostgresStore(postgres_url) as own:
            asyncio.run(drain(own, name))

    async def drain(own: PostgresStore, name: int) -> None:
        until_s = time.monotonic() + LONG_S
        held: list[c.Lease] = []
        while sum(map(len, ran.values())) < len(lanes) * length:
            assert time.monotonic() < until_s
            for lease in held:
                if lease.job.lane is not None:
                    with guard:
                        ran[lease.job.lane].append(int(lease.job.id[1:]))
            if is_urgent and held and name == 0:
                await own.arun(c.Enqueue([JobSpec(own.entropy.new_id(), "q", "k", priority=5)], are_new=True))
            if held:
                _, held = await handed(own, *held, limit=len(held) + 1)
            else:
                *tokens, request = own.entropy.tokens(4)
                held = await own.arun(c.Claim("w", ["q"], 3, tokens, request))
        if held:
            await own.arun(c.Ack([c.AckReport(lease.job.id, lease.token) for lease in held]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S * 2)
        assert not thread.is_alive()
    assert ran == {lane: list(range(length)) for lane in lanes}
    assert check_tables(admin, schema) == []


def waits(admin: psycopg.Connection[Any]) -> bool:
    row = admin.execute(
        "select count(*) from pg_stat_activity where application_name = 'leasemill' and wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return int(row[0]) > 0


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.002)
