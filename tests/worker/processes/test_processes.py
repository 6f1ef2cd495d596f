"""Handlers in processes, on `memory:` and `file:`; on PostgreSQL: tests/store/postgres/test_processes.py."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from leasemill.kernel.model import AbortReason, JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.worker_records import records
from leasemill.worker import pacing
from tests.worker.processes import jobs, suite
from tests.worker.support import FaultyStore, drained, until, working


@pytest.fixture(autouse=True)
def trail(tmp_path: Path) -> Iterator[None]:
    with jobs.trail(tmp_path):
        yield


@pytest.fixture
def store() -> Iterator[Store]:
    with FaultyStore() as store, jobs.app.bound_to(store):
        yield store


@pytest.fixture(params=["memory:", "file:"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = request.param if request.param == "memory:" else f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store, jobs.app.bound_to(store):
        yield store


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.usefixtures("any_store")
async def test_handlers_that_do_not_end_well_take_their_own_process_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await suite.handlers_that_do_not_end_well(monkeypatch)


@pytest.mark.usefixtures("any_store")
async def test_a_handler_commits_enqueues_and_waits_from_its_process() -> None:
    await suite.commits_from_a_process()


@pytest.mark.usefixtures("store")
async def test_results_errors_and_causes_travel_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    big = jobs.returns.enqueue("ä" * 300_000)
    failed = jobs.raises.enqueue("nothing on the shelf")
    exited, closed = jobs.exits.enqueue(3), jobs.closes_descriptors.enqueue()
    written = jobs.writes.enqueue()

    await drained(jobs.app, concurrency=3)

    assert big.result(timeout=0) == "ä" * 300_000
    assert (failed.record().executions[0].error or "").startswith("ValueError: nothing on the shelf")
    assert exited.record().executions[0].error == "its process ended with exit status 3"
    assert exited.status() is JobState.DEAD
    assert closed.record().executions[0].error == "its process closed its connection to the worker"
    assert written.status() is JobState.SUCCEEDED
    lines = [one for one in caplog.records if one.process != os.getpid()]
    assert "about to exit with 3" in [one.getMessage() for one in lines], "the last line before a crash"
    shop = [one for one in lines if one.getMessage() in {"one", "two", "caught", "from a thread", "last"}]
    assert [one.getMessage() for one in shop] == ["one", "two", "caught", "from a thread", "last"]
    assert vars(shop[1])["shelf"] == 7
    assert "KeyError: 'three'" in (shop[2].exc_text or "")
    assert not [one for one in lines if one.getMessage() == "not asked for"]


@pytest.mark.usefixtures("store")
async def test_a_timeout_kills_what_the_handler_started_and_one_that_holds_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pacing, "KILL_GRACE_S", 0.2)
    holding, starting = jobs.holds_the_interpreter.enqueue(), jobs.starts_a_program.enqueue()
    await drained(jobs.app, concurrency=2)
    assert (holding.status(), starting.status()) == (JobState.FAILED, JobState.FAILED)
    assert all(is_gone(one.pid) for one in jobs.marks("began"))
    program = int((tmp_path / "program").read_text())
    await until(lambda: is_gone(program), "the program to be gone")


@pytest.mark.usefixtures("store")
async def test_progress_and_the_process_are_shown_with_the_worker(store: Store, tmp_path: Path) -> None:
    handle = jobs.makes_progress.enqueue()
    async with working(jobs.app, concurrency=1):
        await until(
            lambda: [
                job.note
                for one, _ in records(store.presence)
                for job in one.running
                if job.note == "waiting" and job.pid
            ],
            "the progress",
        )
        ((record, _),) = records(store.presence)
        assert (record.running[0].done, record.running[0].total) == (9_999, 10_000)
        assert psutil.Process(record.running[0].pid).ppid() == os.getpid()
        (tmp_path / "go").touch()
        await until(lambda: handle.status() is JobState.SUCCEEDED, "the end")


@pytest.mark.usefixtures("store")
async def test_a_cancelled_job_may_clean_up_and_is_gone() -> None:
    sync, in_loop = jobs.sleeps.enqueue(60), jobs.sleeps_in_a_loop.enqueue(60)
    async with working(jobs.app, concurrency=2) as worker:
        await until(lambda: len(jobs.marks("began")) == 2, "the handlers")
        jobs.app.store.cancel([sync.id, in_loop.id], by="ann", reason="a test")
        await until(lambda: worker.metrics.running == 0, "the processes to be gone")
    assert {one.job_id for one in jobs.marks("cleaned")} == {sync.id, in_loop.id}
    assert all(is_gone(one.pid) for one in jobs.marks("began"))


async def test_rule_020_012_a_def_handler_without_a_heartbeat_is_killed_before_its_lease_is_over(
    store: FaultyStore,
) -> None:
    handle = jobs.sleeps.options(lease=2, timeout=60).enqueue(60)
    async with working(jobs.app, concurrency=1) as worker:
        await until(lambda: jobs.marks("began"), "the handler")
        store.is_away = True
        (first,) = jobs.marks("began")
        await until(lambda: is_gone(first.pid), "the process to be gone")
        assert time.monotonic() < first.at + 2, "nobody else has it by now"
        store.is_away = False
        await until(lambda: len(jobs.marks("began")) == 2, "the second attempt")
        worker.stop(now=True)
    assert not jobs.marks("overlapped")
    assert handle.record().executions[0].reason in (AbortReason.RELEASED, AbortReason.EXPIRED)


@pytest.mark.usefixtures("store")
async def test_a_shutdown_gives_back_a_job_when_its_process_is_gone() -> None:
    handle, quick = jobs.sleeps.enqueue(60), jobs.sleeps.enqueue(0.2)
    async with working(jobs.app, concurrency=2, shutdown_timeout=3):
        await until(lambda: len(jobs.marks("began")) == 2, "the handlers")
    assert quick.status() is JobState.SUCCEEDED
    record = handle.record()
    assert (record.state, record.executions[0].reason) == (JobState.READY, AbortReason.RELEASED)
    assert all(is_gone(one.pid) for one in jobs.marks("began"))
    assert handle.id in {one.job_id for one in jobs.marks("cleaned")}
