"""What retention goes by on PostgreSQL: one row for each batch that succeeded, taken apart from its oldest end."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, Policy
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.postgres import retention_loop
from leasemill.store.postgres.admin.check import check, rebuild
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.retention import BATCH, Pruned
from leasemill.store.postgres.retention_loop import (
    EVERY_S,
    FEWEST_ROWS,
    EndRate,
    RetentionLoop,
    rest_s,
    rows_for,
    until_next_s,
)
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.conftest import with_option

JOBS = 60
ONCE = Policy(max_retries=0)


def finish(store: Store, rng: random.Random, clock: ManualClock) -> None:
    """All jobs succeed in batches of several sizes, some at the same time; a few fail first and are redriven."""
    store.enqueue([JobSpec(f"j{n:02}", "q", "k", lane="l" if n % 7 == 0 else None, policy=ONCE) for n in range(JOBS)])
    failed = store.claim("w", ["q"], 9)
    store.nack([c.NackReport(lease.job.id, lease.token, "error", 0.5) for lease in failed])
    store.redrive(c.JobFilter(), by="me", reason="again")
    while leases := store.claim("w", ["q"], rng.randint(1, 9)):
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        clock.advance(us=rng.randint(0, 1))


def forget(store: PostgresStore) -> None:
    """A round of retention, begun by the reaper's call, to its end."""
    rounds = store._retention_loop
    rounds._due_at_s -= retention_loop.EVERY_S
    store.expire()
    assert rounds._thread is not None
    rounds.join(time.monotonic() + 60)
    assert not rounds._thread.is_alive()


def left(store: Store) -> list[str]:
    return [job.spec.id for job in store.jobs(limit=1_000).jobs]


@rule("O7", "O5")
@pytest.mark.parametrize("seed", range(6))
def test_batches_are_taken_apart_in_the_order_the_kernel_knows(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], seed: int
) -> None:
    given, expected = random.Random(seed), random.Random(seed)
    times, model_times = ManualClock(), ManualClock()
    with PostgresStore(postgres_url, clock=times) as store, MemoryStore(clock=model_times) as model:
        finish(store, given, times)
        finish(model, expected, model_times)
        assert left(store) == left(model)
        begun = times.now() - 20
        while ids := left(model):
            purged = c.JobFilter(job_ids=tuple(given.sample(ids, min(len(ids), given.randint(0, 3)))))
            before, keep = begun + given.randint(0, 20), given.randint(0, len(ids))
            for one in (store, model):
                if purged.job_ids:
                    one.purge(purged, by="me", reason="gone")
            limit = given.randint(1, 12)
            assert store.prune(before, keep=keep, limit=limit) == model.prune(before, keep=keep, limit=limit)
            assert left(store) == left(model)
            assert check(admin, schema) == []
        row = admin.execute(f"select count(*) from {schema}.finished".encode()).fetchone()
        assert row == (0,)


@rule("O7")
def test_whoever_prunes_and_purges_at_once_forgets_no_job_too_many(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(postgres_url) as store, ThreadPoolExecutor(4) as executor:
        ids = [f"j{n}" for n in range(600)]
        store.enqueue([JobSpec(one, "q", "k") for one in ids])
        while leases := store.claim("w", ["q"], 23):
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        pruned = [executor.submit(store.prune, 0, keep=200, limit=17) for _ in range(40)]
        sample = random.Random(1).sample(ids, 60)
        purged = [
            executor.submit(store.purge, c.JobFilter(job_ids=tuple(sample[n : n + 5])), by="me", reason="gone")
            for n in range(0, 60, 5)
        ]
        gone = sum(one.result() for one in pruned) + sum(len(one.result().job_ids) for one in purged)
        assert store.totals().counts[JobState.SUCCEEDED] == len(ids) - gone
        assert len(left(store)) == len(ids) - gone
        assert len(ids) - gone >= 200 - len(sample)
        assert check(admin, schema) == []


@rule("O7")
def test_what_retention_goes_by_is_found_wrong_and_made_anew(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(postgres_url, clock=ManualClock()) as store:
        store.enqueue([JobSpec("a", "q", "k"), JobSpec("b", "q", "k")])
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 2)])
        admin.execute(f"update {schema}.finished set count = 2, nos = array[nos[1], nos[1]]".encode())
        assert check(admin, schema) == [
            "known to retention twice: job a",
            "succeeded, but retention does not know when: job b",
        ]
        admin.execute(f"update {schema}.finished set at = at + 1, count = 1, nos = nos[:1]".encode())
        assert "known to retention, but it has not succeeded then: job a" in check(admin, schema)
        rebuild(admin, schema)
        assert check(admin, schema) == []
        assert store.prune(0, keep=0) == 2


@rule("O7")
def test_whoever_expires_forgets_old_jobs_and_old_requests_now_and_then(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("retention", "retention_loop"):
        monkeypatch.setattr(f"leasemill.store.postgres.{module}.BATCH", 2)
    with PostgresStore(with_option(postgres_url, "retain_count=3")) as store:
        store.enqueue([JobSpec(f"j{n}", "q", "k") for n in range(6)])
        for _ in range(5):
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 1)])
        store.claim("w", ["q"], 1, request_id="held")
        admin.execute(f"update {schema}.requests set forget_at = 0".encode())
        store.expire()
        assert len(left(store)) == 6
        forget(store)
        assert left(store) == ["j2", "j3", "j4", "j5"]
        assert admin.execute(f"select id from {schema}.requests".encode()).fetchall() == [("held",)]


@rule("O7")
def test_a_round_forgets_the_oldest_however_they_are_spread_over_batches(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.store.postgres.retention_loop.BATCH", 10)
    monkeypatch.setattr("leasemill.store.postgres.retention_loop.FEWEST_ROWS", 1)
    clock = ManualClock()
    with PostgresStore(with_option(postgres_url, "retain_count=5"), clock=clock) as store:
        store.enqueue([JobSpec(f"j{n:03}", "q", "k") for n in range(100)])
        for size in (30, 1, 1, 1, 25, 1, 1, 1, 1, 38):  # many in a row, then few: what the last batch saw misleads
            leases = store.claim("w", ["q"], size)
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
            clock.advance(s=10)
        forget(store)
        assert left(store) == [f"j{n:03}" for n in range(95, 100)]
        assert store.totals().counts[JobState.SUCCEEDED] == 5
        assert check(admin, schema) == []


@rule("O7")
def test_who_finds_another_at_it_leaves_the_round_to_them(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(with_option(postgres_url, "retain_count=0")) as store:
        store.enqueue([JobSpec("a", "q", "k")])
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 1)])
        with admin.transaction():
            admin.execute("select pg_advisory_xact_lock(%s)", [store._known.retention_key])
            forget(store)
            assert left(store) == ["a"]
        forget(store)
        assert left(store) == []


@rule("O7")
def test_closing_a_store_waits_for_no_rest(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.store.postgres.retention_loop.BATCH", 1)
    rests: Queue[float] = Queue()

    def long(took_s: float, forgotten: int, ended_per_s: float, surplus: int) -> float:
        rests.put(took_s)
        return 3600.0

    monkeypatch.setattr("leasemill.store.postgres.retention_loop.rest_s", long)
    store = PostgresStore(with_option(postgres_url, "retain_count=0"))
    store.enqueue([JobSpec(one, "q", "k") for one in "abc"])
    store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 3)])
    rounds = store._retention_loop
    rounds._due_at_s -= retention_loop.EVERY_S
    store.expire()
    rests.get(timeout=60)
    store.close()
    assert rounds._thread is not None
    rounds._thread.join(60)
    assert not rounds._thread.is_alive()
    with PostgresStore(postgres_url) as again:
        assert left(again) == ["b", "c"]


# How long to rest, how much to read ------------------------------------------------------------------------------


def test_a_batch_is_followed_by_a_long_rest_while_few_jobs_end() -> None:
    assert rest_s(0.01, 2_000, 0.0) == pytest.approx(0.09)
    assert rest_s(0.01, 2_000, 100.0) == pytest.approx(0.09)


def test_jobs_are_forgotten_faster_than_they_end() -> None:
    assert rest_s(0.01, 2_000, 20_000.0) == pytest.approx(2_000 / 25_000 - 0.01)


def test_there_is_a_rest_even_where_jobs_end_faster_than_they_can_be_forgotten() -> None:
    assert rest_s(0.1, 2_000, 1_000_000.0) == pytest.approx(0.01)


def test_the_rate_at_which_jobs_end_is_that_of_what_is_there_and_what_was_forgotten() -> None:
    rate = EndRate()
    rate.note(0.0, Pruned(100, True, 1, 1, 1_000))
    assert rate.per_s is None
    rate.note(0.5, Pruned(100, True, 1, 1, 1_000))  # 100 have ended since
    rate.note(2.0, Pruned(100, True, 1, 1, 1_200))
    assert rate.per_s == pytest.approx((1_200 + 200 - 1_000) / 2)
    rate.note(3.0, Pruned(0, True, 1, 1, 0))  # an operator purged the others
    assert rate.per_s == 0.0


def test_as_many_rows_are_read_as_hold_a_batch() -> None:
    assert rows_for(2_000, None) == 2_000
    assert rows_for(2_000, Pruned(2_000, True, 1, 8, 10_000)) == FEWEST_ROWS + 16
    assert rows_for(2_000, Pruned(2_000, True, 1, 2_000, 10_000)) == 2_000
    assert rows_for(2_000, Pruned(0, False, None, 0, 0)) == 2_000


def test_what_is_too_much_is_forgotten_within_a_minute_or_so_whatever_the_rate_seems_to_be() -> None:
    """Another process that forgets too makes the rate look like none."""
    assert rest_s(0.01, 2_000, 0.0, surplus=1_200_000) == pytest.approx(2_000 / 20_000 - 0.01)
    assert rest_s(0.01, 2_000, 10_000.0, surplus=450_000) == pytest.approx(2_000 / 20_000 - 0.01)
    assert rest_s(0.1, 2_000, 0.0, surplus=100_000_000) == pytest.approx(0.01)


def test_the_next_look_is_when_a_batch_will_be_too_much() -> None:
    assert until_next_s(None, 0) == 1.0
    assert until_next_s(1_000.0, 0) == BATCH / 1_000.0
    assert until_next_s(1_000.0, 8_000) == (8_000 + BATCH) / 1_000.0
    assert until_next_s(1_000_000.0, 0) == 0.1
    assert until_next_s(0.0, 0) > EVERY_S


class Simulated:
    """A store in which jobs end at a rate, and its time: retention, connections, the event that a rest waits for and
    the module `time` in one."""

    def __init__(self, ended_per_s: float, until_s: float) -> None:
        self.now_s = 0.0
        self.forgotten = 0
        self.most: list[float] = []
        """The most jobs that were kept at any look, for each ten seconds."""
        self._ended_per_s = ended_per_s
        self._until_s = until_s

    def monotonic(self) -> float:
        return self.now_s

    def is_set(self) -> bool:
        return self.now_s > self._until_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def run(self, verb: Any) -> Any:
        """Either the store's time is asked for, or it has its result already."""
        return self.now() if isinstance(verb, Generator) else verb

    def now(self) -> int:
        return int(self.now_s * SECOND)

    def nothing(self, *_: Any) -> int:
        return 0

    fold_groups = forget_requests = forget_rates = forget_keys = prune_groups = nothing

    def prune_some(self, prune: c.Prune, *, from_at: int, rows: int) -> Pruned:
        kept = int(self.now_s * self._ended_per_s) - self.forgotten
        while len(self.most) <= self.now_s // 10:
            self.most.append(kept)
        self.most[-1] = max(self.most[-1], kept)
        forgotten = min(prune.limit, max(0, kept - prune.keep))
        self.forgotten += forgotten
        self.now_s += 0.02
        return Pruned(forgotten, False, from_at if forgotten else None, 1, kept)


@rule("O7")
@pytest.mark.parametrize("ended_per_s", [500.0, 5_000.0, 20_000.0, 50_000.0])
def test_under_a_steady_load_no_more_is_kept_than_the_number_and_a_few_batches(
    ended_per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came together before the first round is gone after two minutes, and does not come again."""
    store: Any = Simulated(ended_per_s, 300.0)
    monkeypatch.setattr(retention_loop, "time", store)
    rounds = RetentionLoop(store, store, parse_url("postgresql://host/db?retain_count=20000")[1])
    rounds._stopped = store
    while not store.is_set():
        store.now_s += EVERY_S  # as if a round had just ended when the load began
        rounds._run()
    assert max(store.most[12:]) <= 20_000 + 5 * BATCH
