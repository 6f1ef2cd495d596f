"""A worker's id is its own: the second of two is refused, and a restart under the same id is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest
from msgspec.structs import replace

from leasemill import App, JobType, Worker
from leasemill.errors import Refused
from leasemill.store.presence import MemoryPresence
from leasemill.store.worker_records import ProcessIdentity, WorkerRecord, encode_record
from leasemill.worker.identity import own
from leasemill.worker.presence import WorkerPresence
from tests.worker.support import FaultyStore, until, working


def record(
    instance: str = "another",
    *,
    host: str = "elsewhere",
    pid: int = 7,
    started_at: float = 0.0,
    published_at: float = 0.0,
    process: ProcessIdentity | None = None,
) -> bytes:
    return encode_record(
        WorkerRecord(
            *("w", host, pid, started_at, published_at, 2.0, {"q": 1}, 1, False, [], {}),
            instance=instance,
            process=process,
        )
    )


async def test_a_second_worker_of_one_id_in_the_same_process_is_refused_and_leaves_the_first_alone(
    app: App, noop: JobType[[], None]
) -> None:
    async with working(app, worker_id="w") as first:
        await until(app.store.presence.records, limit_s=30)
        with pytest.raises(Refused, match="worker id 'w' is in use by a live worker"):
            await asyncio.wait_for(Worker(app, worker_id="w", handle_signals=False).run(), 30)
        assert [present.worker_id for present in app.store.presence.records()] == ["w"]
        await noop.enqueue().aresult(30)
        assert first.metrics.succeeded == 1
    async with working(app, worker_id="w"):
        await until(app.store.presence.records, limit_s=30)


@pytest.mark.usefixtures("noop")
async def test_a_worker_is_refused_the_id_of_one_that_still_publishes(app: App) -> None:
    presence = app.store.presence
    presence.publish("w", record(published_at=1.0))
    task = asyncio.create_task(Worker(app, worker_id="w", handle_signals=False).run())
    published_at = 1.0
    deadline = time.monotonic() + 30
    while not task.done() and time.monotonic() < deadline:
        published_at += 1
        presence.publish("w", record(published_at=published_at))
        await asyncio.sleep(0.05)
    with pytest.raises(Refused, match=r"worker id 'w' is in use by a live worker \(host elsewhere, pid 7\)"):
        await task
    assert [present.worker_id for present in presence.records()] == ["w"], "the record of the other is still there"


async def test_a_worker_waits_until_the_record_of_one_that_was_killed_is_stale() -> None:
    now = [100.0]
    presence = MemoryPresence(lambda: now[0])
    presence.publish("w", record())
    identity = WorkerPresence("w", presence, time.time())
    waiting = threading.Thread(target=identity.await_free, args=[lambda: False], daemon=True)
    waiting.start()
    waiting.join(0.6)
    assert waiting.is_alive()
    now[0] += 9.1
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_worker_does_not_wait_for_a_process_of_this_machine_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(60)
    presence = MemoryPresence()
    here = own()
    assert here is not None
    presence.publish("w", record(process=replace(here, pid=gone.pid)))
    waiting = threading.Thread(
        target=WorkerPresence("w", presence, time.time()).await_free, args=[lambda: False], daemon=True
    )
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()


def test_of_two_that_started_at_the_same_moment_the_later_one_is_refused() -> None:
    presence = MemoryPresence()
    earlier, later = WorkerPresence("w", presence, 1.0), WorkerPresence("w", presence, 2.0)
    presence.publish("w", record(later.instance, started_at=2.0))
    earlier.check_first()
    presence.publish("w", record(earlier.instance, started_at=1.0))
    with pytest.raises(Refused, match="worker id 'w' is in use"):
        later.check_first()
    later.withdraw()
    assert [present.worker_id for present in presence.records()] == ["w"], "it is the other's"
    earlier.withdraw()
    assert presence.records() == []


async def test_records_that_cannot_be_read_do_not_keep_a_worker_from_starting(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    def fails() -> list[object]:
        raise OSError("no such folder")

    store.presence.records = fails  # type: ignore[method-assign,assignment]
    async with working(app, worker_id="w"):
        await noop.enqueue().aresult(30)
