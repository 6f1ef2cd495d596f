"""Runs that die at a chosen point, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasemill import App, Context, JobHandle, JobState, LeaseLost
from leasemill.errors import Invalid
from leasemill.testing.binding import STORE_KINDS, Binder
from leasemill.testing.crash import CrashPoint, WorkerCrashed
from leasemill.testing.jobs import Jobs
from leasemill.worker.store_loop import StoreLoop

app = App("file:./must-not-be-opened")
trace: list[str] = []
"""What handlers have done, since the test began."""


@app.job
def commits(ctx: Context) -> None:
    trace.append(f"begins {ctx.attempt}")
    with ctx.commit() as tx:
        tx.enqueue(follows)
    trace.append(f"goes on {ctx.attempt}")


@app.job
async def commits_async(ctx: Context) -> None:
    trace.append(f"begins {ctx.attempt}")
    async with ctx.commit() as tx:
        tx.enqueue(follows)
    trace.append(f"goes on {ctx.attempt}")


@app.job(queue="later")
def follows() -> None:
    trace.append("follows")


@app.job
def returns(ctx: Context) -> str:
    trace.append(f"begins {ctx.attempt}")
    return "done"


@app.job
async def returns_async(ctx: Context) -> str:
    trace.append(f"begins {ctx.attempt}")
    await asyncio.sleep(0)
    return "done"


@pytest.fixture(params=STORE_KINDS)
def jobs(request: pytest.FixtureRequest, leasemill: Binder) -> Iterator[Jobs]:
    trace.clear()
    with leasemill(app, store=request.param) as jobs:
        yield jobs


def crash(jobs: Jobs, point: CrashPoint, kind: str) -> JobHandle[Any]:
    """Enqueue a job and let its first run die."""
    handle = app.jobs[kind].enqueue()
    with jobs.crash_at(point):
        jobs.drain()
    return handle


COMMITTING = pytest.mark.parametrize("kind", ["commits", "commits_async"])
RETURNING = pytest.mark.parametrize("kind", ["returns", "returns_async"])


@pytest.mark.parametrize("kind", ["commits", "commits_async", "returns", "returns_async"])
def test_a_job_whose_worker_dies_before_its_start_is_started_by_another(jobs: Jobs, kind: str) -> None:
    handle = crash(jobs, "before_start", kind)
    assert trace == []
    assert handle.status() is JobState.READY
    jobs.drain()
    assert trace[0] == "begins 2"
    assert handle.status() is JobState.SUCCEEDED


@COMMITTING
def test_a_run_that_dies_before_its_commit_leaves_nothing(jobs: Jobs, kind: str) -> None:
    handle = crash(jobs, "before_commit", kind)
    assert trace == ["begins 1"]
    assert (handle.status(), jobs.enqueued(follows)) == (JobState.READY, [])
    jobs.drain()
    assert sorted(trace) == ["begins 1", "begins 2", "follows", "goes on 2"]
    assert handle.status() is JobState.SUCCEEDED


@COMMITTING
def test_a_run_that_dies_after_its_commit_is_not_repeated(jobs: Jobs, kind: str) -> None:
    handle = app.jobs[kind].enqueue()
    with jobs.crash_at("after_commit", of=kind):
        jobs.drain()
    assert handle.status() is JobState.SUCCEEDED
    jobs.drain()
    assert trace == ["begins 1", "follows"]


@COMMITTING
def test_a_committed_run_whose_ack_is_lost_is_not_repeated(jobs: Jobs, kind: str) -> None:
    handle = app.jobs[kind].enqueue()
    with jobs.crash_at("before_ack", of=kind):
        jobs.drain()
    assert handle.status() is JobState.SUCCEEDED
    jobs.drain()
    assert sorted(trace) == ["begins 1", "follows", "goes on 1"]


@RETURNING
def test_a_run_without_a_commit_whose_ack_is_lost_is_repeated(jobs: Jobs, kind: str) -> None:
    handle = crash(jobs, "before_ack", kind)
    assert handle.status() is JobState.READY
    jobs.drain()
    assert trace == ["begins 1", "begins 2"]
    assert handle.result(timeout=0) == "done"
    record = handle.record()
    assert (len(record.executions), record.refusals) == (2, ())


@COMMITTING
def test_a_commit_behind_a_lost_lease_is_refused(jobs: Jobs, kind: str) -> None:
    handle = crash(jobs, "lease_lost", kind)
    jobs.drain()
    assert sorted(trace) == ["begins 1", "begins 2", "follows", "goes on 2"]
    assert handle.status() is JobState.SUCCEEDED
    assert "commit" in [refusal.verb.value for refusal in handle.record().refusals]


@RETURNING
def test_an_ack_behind_a_lost_lease_is_refused(jobs: Jobs, kind: str) -> None:
    handle = crash(jobs, "lease_lost", kind)
    jobs.drain()
    assert trace == ["begins 1", "begins 2"]
    assert handle.result(timeout=0) == "done"
    assert "ack" in [refusal.verb.value for refusal in handle.record().refusals]


def test_a_lost_lease_is_told_to_the_handler(leasemill: Binder) -> None:
    own = App("memory:")
    caught: list[str] = []

    @own.job
    def charge(ctx: Context) -> None:
        try:
            with ctx.commit():
                pass
        except LeaseLost as lost:
            caught.append(f"{lost.verb} in attempt {ctx.attempt}")
            raise

    with leasemill(own) as jobs:
        charge.enqueue()
        with jobs.crash_at("lease_lost"):
            jobs.drain()
        jobs.drain()
    assert caught == ["commit in attempt 1"]


async def test_async_tests_crash_too(leasemill: Binder) -> None:
    trace.clear()
    with leasemill(app) as jobs:
        handle = await commits_async.aenqueue()
        with jobs.crash_at("before_commit"):
            await jobs.adrain()
        assert await handle.astatus() is JobState.READY
        await jobs.afinish()
        assert await handle.astatus() is JobState.SUCCEEDED
    assert sorted(trace) == ["begins 1", "begins 2", "follows", "goes on 2"]


def test_only_one_run_dies_and_others_go_on(leasemill: Binder) -> None:
    trace.clear()
    with leasemill(app) as jobs:
        handles = [returns.enqueue() for _ in range(5)]
        with jobs.crash_at("before_ack"):
            assert jobs.drain().succeeded == 4
        assert sorted(handle.status() for handle in handles) == [JobState.READY, *[JobState.SUCCEEDED] * 4]


def test_a_crash_may_wait_for_one_kind(leasemill: Binder) -> None:
    trace.clear()
    with leasemill(app) as jobs:
        commits.enqueue()
        with jobs.crash_at("before_ack", of=follows):
            jobs.drain()
        assert jobs.enqueued() == jobs.enqueued(follows) == [{}]
        jobs.drain()
    assert trace.count("follows") == 2


def test_a_dead_run_reaches_nobody_whatever_it_catches(leasemill: Binder) -> None:
    own, tried = App("memory:"), list[str]()

    @own.job
    def other() -> None:
        tried.append("other ran")

    @own.job
    def charge(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "second"
        try:
            with ctx.commit():
                pass
        except Exception:  # noqa: BLE001
            tried.append("caught an Exception")
        except BaseException:  # noqa: BLE001
            for call in (other.enqueue, lambda: charge.options(job_id="x").enqueue()):
                with pytest.raises(WorkerCrashed):
                    call()
            with pytest.raises(Invalid, match="committed in this run already"):
                ctx.commit()
            assert ctx.lost.is_set()
        finally:
            tried.append("finally")
        return "first"

    with leasemill(own) as jobs:
        handle = charge.enqueue()
        with jobs.crash_at("before_commit"):
            jobs.drain()
        assert jobs.enqueued() == [{}]
        jobs.drain()
        assert handle.result(timeout=0) == "second"
    assert tried == ["finally"]


def test_an_effect_under_once_is_there_once_after_every_crash(leasemill: Binder, tmp_path: Path) -> None:
    own, path = App("memory:"), tmp_path / "effects.db"

    @own.job
    def charge(ctx: Context, cents: int) -> None:
        with sqlite3.connect(path) as connection, ctx.once(connection) as first:
            if first:
                connection.execute("insert into charges values (?)", [cents])

    with sqlite3.connect(path) as connection:
        connection.execute("create table charges (cents integer)")
        points: list[CrashPoint] = ["before_start", "before_ack", "lease_lost"]
        for point in points:
            with leasemill(own) as jobs:
                charge.enqueue(500)
                with jobs.crash_at(point):
                    jobs.drain()
                jobs.drain()
                assert jobs.unfinished == []
        assert connection.execute("select count(*) from charges").fetchone() == (len(points),)
    connection.close()


def drain_with_crash(jobs: Jobs, point: CrashPoint, of: str | None = None) -> None:
    with jobs.crash_at(point, of=of):
        jobs.drain()


def test_a_point_that_no_run_reaches_fails_the_test(leasemill: Binder) -> None:
    with leasemill(app) as jobs:
        with pytest.raises(AssertionError, match="no job ran: enqueue one that is due, and drain inside the block"):
            drain_with_crash(jobs, "before_ack")
        returns.enqueue()
        with pytest.raises(AssertionError, match=r"before_ack of returns.*without ctx.commit\(\) has no commit of its"):
            drain_with_crash(jobs, "after_commit")
        returns.enqueue()
        with pytest.raises(AssertionError, match="no run of 'commits' reached 'before_ack'"):
            drain_with_crash(jobs, "before_ack", of="commits")


def test_what_a_test_raises_in_the_block_is_not_hidden(leasemill: Binder) -> None:
    with leasemill(app) as jobs, pytest.raises(ZeroDivisionError), jobs.crash_at("before_ack"):
        raise ZeroDivisionError


def test_an_unknown_point_is_refused(leasemill: Binder) -> None:
    with leasemill(app) as jobs, pytest.raises(Invalid, match="no crash point 'in_commit': write one of before_start,"):
        jobs.crash_at("in_commit").__enter__()  # type: ignore[arg-type]


def test_a_drain_does_not_wait_for_a_poll_when_its_last_run_is_lost(
    leasemill: Binder, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, is_waiting, watch = App("memory:"), threading.Event(), StoreLoop._watch_for_jobs

    async def watch_noticed(loop: StoreLoop, timeout_s: float) -> None:
        is_waiting.set()
        await watch(loop, timeout_s)

    monkeypatch.setattr(StoreLoop, "_watch_for_jobs", watch_noticed)
    monkeypatch.setattr("leasemill.worker.decisions.POLL_S", 3600.0)

    @own.job
    def charge(ctx: Context) -> None:
        with ctx.commit():
            assert is_waiting.wait(60)

    with leasemill(own) as jobs:
        charge.enqueue()
        with jobs.crash_at("before_commit"):
            jobs.drain()
        assert jobs.enqueued() == [{}]
