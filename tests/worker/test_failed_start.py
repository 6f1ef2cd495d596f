"""A worker that cannot start: what it had opened, started and registered by then is gone with it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from leasemill import App, JobType, Observer, Worker
from leasemill.errors import Broken, LifespanFailed, Refused
from leasemill.store.worker_records import WorkerRecord, encode_record
from leasemill.worker.deaths import Deaths
from leasemill.worker.runner import Runner
from leasemill.worker.stalls import Stalls
from tests.worker.support import FaultyStore, until
from tests.worker.test_deaths import identity_of, sleeping


def descriptors_of_processes() -> int:
    return sum("pidfd" in str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())


async def test_descriptors_of_other_workers_are_closed_when_the_lifespan_fails(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    before = descriptors_of_processes()

    @app.lifespan
    @asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        opened.append(descriptors_of_processes() - before)
        if opened:
            raise ValueError
        yield

    opened: list[int] = []
    with sleeping() as process:
        record = WorkerRecord(
            worker="other",
            host="here",
            pid=process.pid,
            started_at=0,
            published_at=0,
            interval_s=2,
            queues={},
            concurrency=1,
            is_stopping=False,
            running=[],
            counters={},
            instance="otherone",
            process=identity_of(process.pid),
        )
        store.presence.publish("other", encode_record(record))
        with pytest.raises(LifespanFailed):
            await Worker(app, handle_signals=False).run()
        assert opened == [1]
        assert descriptors_of_processes() == before


async def test_a_worker_whose_handlers_cannot_run_is_notified_of_no_expiry_later(
    app: App, store: FaultyStore, noop: JobType[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: Runner) -> None:
        raise Refused("no process can be started")

    monkeypatch.setattr(Runner, "prepare", refused)
    with pytest.raises(Refused):
        await Worker(app, handle_signals=False).run()
    assert store.expiries.listeners == ()


async def test_a_worker_whose_last_step_fails_before_it_works_ends_no_work(
    app: App, store: FaultyStore, noop: JobType[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes(Observer):
        def worker_ended(self, worker_id: str) -> None:
            ended.append(worker_id)

    def broken(self: Deaths) -> None:
        raise Broken("the log is damaged")

    ended: list[str] = []
    app.observers.append(Notes())
    monkeypatch.setattr(Deaths, "round", broken)
    with pytest.raises(Broken):
        await Worker(app, handle_signals=False).run()
    assert ended == []
    assert store.expiries.listeners == ()


async def test_threads_end_when_one_of_them_cannot_start(
    app: App, noop: JobType[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_threads(self: Stalls) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Stalls, "start", no_more_threads)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await Worker(app, handle_signals=False).run()
    await until(lambda: set(threading.enumerate()) <= before, "threads to end")
