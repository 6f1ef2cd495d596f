"""The server's wall clock is stepped while jobs are held: leases end early or late, and nothing else happens.

The schema has a clock of its own here, the real one and a step that a test sets: what an administrator would do to the
machine, done to every statement, prepared ones too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill import App, Context, JobState, Retry
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.store.postgres import watermarks
from leasemill.store.postgres.admin import check
from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.steps import Row, Steps, rows, transact
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule
from tests.store.postgres.conftest import with_option
from tests.worker.support import until, working

SCHEMA = "leasemill_stepped"
HOUR_S = 3_600
STEPPED = f"""
create table {SCHEMA}.step (us int8 not null);
insert into {SCHEMA}.step values (0);
create or replace function {SCHEMA}.clock(given int8) returns int8 language plpgsql volatile as $clock$
begin
    return coalesce(given, (extract(epoch from clock_timestamp()) * 1000000)::int8 + (select us from {SCHEMA}.step));
end $clock$;
create table {SCHEMA}.effects (job text not null);
"""


class Server:
    """A server whose clock can be set."""

    def __init__(self, url: str, admin: psycopg.Connection[Any]) -> None:
        self.url = url
        self.admin = admin

    def step(self, seconds: float) -> None:
        """From the right time, not from the last step."""
        self.admin.execute(f"update {SCHEMA}.step set us = %s".encode(), [int(seconds * SECOND)])

    def effects(self) -> list[str]:
        return [job for (job,) in self.admin.execute(f"select job from {SCHEMA}.effects order by job".encode())]


@pytest.fixture
def server(server_url: str, admin: psycopg.Connection[Any]) -> Iterator[Server]:
    admin.execute(f"drop schema if exists {SCHEMA} cascade".encode())
    migrate(admin, SCHEMA)
    admin.execute(STEPPED.encode())
    yield Server(with_option(server_url, f"schema={SCHEMA}"), admin)
    admin.execute(f"drop schema if exists {SCHEMA} cascade".encode())


@pytest.fixture
def store(server: Server) -> Iterator[PostgresStore]:
    with PostgresStore(server.url) as opened:
        yield opened


def claimed(store: PostgresStore, worker: str) -> c.Lease | None:
    leases = store.claim(worker, ["work"], 1)
    return leases[0] if leases else None


@rule("L8", "X4", "I3")
def test_a_step_forward_ends_a_lease_early_and_the_fence_protects_the_job(server: Server, store: PostgresStore) -> None:
    store.enqueue([JobSpec("job", "work", "kind")])
    first = claimed(store, "first")
    assert first is not None
    server.step(HOUR_S)
    second = claimed(store, "second")
    assert second is not None, "taken over, by the step too early"
    assert second.fence > first.fence
    assert isinstance(store.commit("job", first.token), c.Lost)
    assert isinstance(store.commit("job", second.token), c.Committed)
    assert isinstance(store.ack([c.AckReport("job", second.token)])[0], c.Acked)
    assert check.check(server.admin, SCHEMA) == []


@rule("L8", "C7")
def test_a_step_back_lets_a_lease_last_longer_by_the_step_and_loses_nothing(
    server: Server, store: PostgresStore
) -> None:
    store.enqueue([JobSpec("held", "work", "kind"), JobSpec("dead", "work", "kind"), JobSpec("ready", "work", "kind")])
    held, dead = claimed(store, "alive"), claimed(store, "dead")
    assert held is not None
    assert dead is not None
    server.step(-HOUR_S)
    assert claimed(store, "other") is None, "what was due before waits until the clock has caught up"
    store.enqueue([JobSpec("new", "work", "kind")])
    new = claimed(store, "other")
    assert new is not None
    assert new.job.id == "new", "what is enqueued now does not"
    for lease in (held, new):
        assert isinstance(store.ack([c.AckReport(lease.job.id, lease.token)])[0], c.Acked)
    server.step(60)  # as if the hour, and the lease, had passed
    left = [claimed(store, "other"), claimed(store, "other")]
    assert {lease.job.id for lease in left if lease is not None} == {"dead", "ready"}
    assert isinstance(store.ack([c.AckReport("dead", dead.token)])[0], c.Lost)
    assert check.check(server.admin, SCHEMA) == []


@rule("L8", "C1")
@pytest.mark.parametrize("by", ["a claim that is granted nothing", "the reaper"])
def test_a_step_back_hides_no_new_job_from_claims(
    server: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The clock has caught up with a watermark while a job that is due before it waited; no minute has passed."""
    monkeypatch.setattr(watermarks, "WORN", 1)
    monkeypatch.setattr(watermarks, "MOVE_EVERY_S", 0.0)
    store._maintenance.watermarks._checked_at_s = time.monotonic()
    for step in (0, 10):
        server.step(step)
        store.enqueue([JobSpec(f"before-{step}", "work", "kind")])
        assert claimed(store, "first") is not None
        store.expire(10)
    store.expire(10)
    server.step(0)
    store.enqueue([JobSpec("new", "work", "kind")])
    moved = (
        f"update {SCHEMA}.watermarks set low_at = {SCHEMA}.clock(null), next_at = null where rank = 9 and low_at > 0"
    )
    assert server.admin.execute(moved.encode()).rowcount == 1, "there is no watermark"
    if by == "the reaper":
        store.enqueue([JobSpec("newer", "work", "kind")])
        newer = claimed(store, "second")
        assert newer is not None
        assert newer.job.id == "newer", "the watermark hides nothing"
        store.expire(10)
        with PostgresStore(server.url) as other:
            found = claimed(other, "third")
    else:
        found = claimed(store, "second")
    assert found is not None
    assert found.job.id == "new"
    assert check.check(server.admin, SCHEMA) == []


def test_a_check_after_a_step_that_conflicts_with_another_is_followed_by_a_second_just_as_soon(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first does not see the jobs that were being enqueued meanwhile."""
    checked, conflicts = store._maintenance.watermarks, [psycopg.errors.LockNotAvailable()]

    def read_after_conflict(*arguments: Any) -> Steps[list[Row]]:
        if conflicts:
            raise conflicts.pop()
        return rows(*arguments)

    store._known.positions.was_set_back = True
    monkeypatch.setattr(watermarks, "rows", read_after_conflict)
    store._thread_driver.run(transact(lambda _: checked.check()))
    assert not conflicts
    waits_s = watermarks.CHECK_EVERY_S - (time.monotonic() - checked._checked_at_s)
    assert waits_s <= watermarks.CHECK_AGAIN_S


@rule("L8")
async def test_a_worker_stops_a_handler_whose_lease_a_step_has_ended(server: Server) -> None:
    with App(server.url) as app:
        stopped: list[int] = []

        @app.job(lease=3, timeout=120, retry=Retry(max=3, base=0.01, cap=0.01))
        async def waits(ctx: Context) -> None:
            if ctx.attempt > 1:
                return
            try:
                await asyncio.sleep(100)
            finally:
                stopped.append(ctx.attempt)

        handle = waits.enqueue()
        async with working(app):
            await until(lambda: handle.status() is JobState.LEASED)
            server.step(HOUR_S)
            await until(lambda: stopped == [1], limit_s=30)
            await until(lambda: handle.status() is JobState.SUCCEEDED, limit_s=30)
        job = handle.record()
        assert job.retries == 0, "a lost lease costs no retry"


@rule("L8", "X4", "X5")
@pytest.mark.timeout(120)
async def test_steps_in_both_directions_lose_no_job_and_commit_none_twice(server: Server) -> None:
    """At worst a job is taken over early or late; each has its effect once."""
    source = random.Random(8)
    with App(server.url) as app:

        @app.job(lease=2, timeout=60, max_expirations=100, retry=Retry(max=100, base=0.01, cap=0.05))
        async def enters(ctx: Context) -> None:
            async with ctx.commit() as tx:
                await tx.execute(f"insert into {SCHEMA}.effects values (%s)".encode(), [ctx.job_id])
                await asyncio.sleep(0.01)

        handles = []
        async with working(app, worker_id="a"), working(app, worker_id="b"):
            for number in range(30):
                server.step(source.choice([-HOUR_S, -5, -0.5, 0, 0.5, 5, HOUR_S]))
                handles += [await enters.options(job_id=f"{number:02}-{one}").aenqueue() for one in range(5)]
                await asyncio.sleep(0.05)
            server.step(2 * HOUR_S)  # past whatever was promised by a clock that ran ahead
            await until(lambda: all(handle.status() is JobState.SUCCEEDED for handle in handles), limit_s=60)
        assert server.effects() == sorted(handle.id for handle in handles)
        assert check.check(server.admin, SCHEMA) == []
