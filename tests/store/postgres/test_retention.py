"""What retention goes by on PostgreSQL: one row for each batch that succeeded, taken apart from its oldest end."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.postgres import retention
from leasemill.store.postgres.admin.check import check, rebuild
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
    monkeypatch.setattr("leasemill.store.postgres.retention.BATCH", 2)
    with PostgresStore(with_option(postgres_url, "retain_count=3")) as store:
        store.enqueue([JobSpec(f"j{n}", "q", "k") for n in range(6)])
        for _ in range(5):
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 1)])
        store.claim("w", ["q"], 1, request_id="held")
        admin.execute(f"update {schema}.requests set forget_at = 0".encode())
        store.expire()
        assert len(left(store)) == 6
        store._maintenance.retention._ran_at_s = -retention.EVERY_S
        store.expire()
        assert left(store) == ["j2", "j3", "j4", "j5"]
        assert admin.execute(f"select id from {schema}.requests".encode()).fetchall() == [("held",)]
