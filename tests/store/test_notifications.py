"""Waiting for a signal in an event loop; expired leases, logged and counted once by the process that recorded them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.file.store import FileStore
from leasemill.store.notifications import KEPT, Expiries, Signal
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker.metrics import Metrics
from leasemill.worker.reaper import Reaper


@pytest.mark.parametrize("steps", range(5))
async def test_a_waiter_that_is_cancelled_as_the_signal_comes_is_cancelled(steps: int) -> None:
    """It would wait again, for as long as it likes, if the signal hid that it is to end."""
    signal = Signal()
    waiting = asyncio.create_task(signal.watch().wait_async(60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    signal.notify()
    for _ in range(steps):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert waiting.result() is True


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message.startswith("lease of worker ghost on job ")]


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, ManualClock]:
    """A folder with a lease that expired while nobody had it open."""
    clock = ManualClock()
    with FileStore(tmp_path / "jobs", clock=clock) as store:
        store.enqueue([JobSpec("x", "q", "k")])
        store.claim("ghost", ["q"], 1)
    clock.advance(s=33)
    return tmp_path / "jobs", clock


@rule("W15", "L7")
def test_what_a_worker_records_as_it_opens_a_folder_is_counted_and_logged_once(
    left: tuple[Path, ManualClock], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker reads records and policies before its reaper is there: that opens the folder."""
    path, clock = left
    with FileStore(path, clock=clock) as store:
        store.queues()
        metrics = Metrics()
        reaper = Reaper("me", store, metrics)
        quarantined: list[str] = []
        reaper.on_quarantined = quarantined.append
        reaper.run()
        assert (metrics.reaper_recovered, metrics.reaper_recovered_last_run) == (1, 1)
        assert metrics.reaper_stuck_seconds == pytest.approx(3)
        reaper.run()
        assert (metrics.reaper_recovered, metrics.reaper_recovered_last_run) == (1, 0)
        assert quarantined == []
        reaper.close()
    assert len(lines(caplog)) == 1


@rule("W15")
def test_what_a_command_records_is_in_its_log(left: tuple[Path, ManualClock], caplog: pytest.LogCaptureFixture) -> None:
    """Such as `leasemill stats`: it has no counter, and it says what it has done."""
    path, clock = left
    with FileStore(path, clock=clock) as store:
        assert store.totals().counts[JobState.READY] == 1
    (line,) = lines(caplog)
    assert line.getMessage() == "lease of worker ghost on job x expired 3.0 s ago: the job is ready"
    assert (line.name, line.levelno) == ("leasemill.store", logging.WARNING)


@rule("L7")
def test_what_a_busy_claim_records_is_counted_and_logged_once(
    left: tuple[Path, ManualClock], caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = left
    with FileStore(path, clock=clock) as store:
        store.claim("me", ["q"], 1)
        metrics = Metrics()
        reaper = Reaper("me", store, metrics)
        reaper.run()
        assert metrics.reaper_recovered == 1
        store.enqueue([JobSpec("y", "q", "k")])
        clock.advance(s=33)
        assert [lease.job.id for lease in store.claim("me", ["q"], 1)] == ["x"]
        assert metrics.reaper_recovered == 2
    assert len(lines(caplog)) == 1
    assert len([record for record in caplog.records if "lease of worker me on job x" in record.message]) == 1


def test_the_first_listener_alone_counts_what_came_before_it() -> None:
    expiries = Expiries()
    earlier = [c.Expiration(f"job-{number}", "ghost", 1, 0, JobState.READY) for number in range(KEPT + 1)]
    expiries.notify(earlier)
    heard: list[c.Expiration] = []
    assert expiries.listen(heard.extend) == earlier[1:], "the oldest beyond so many is not counted"
    assert expiries.listen(lambda _: None) == []
    expiries.notify(earlier[:1])
    assert heard == earlier[:1]


def test_a_write_that_failed_is_not_reported(
    left: tuple[Path, ManualClock], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = left
    with FileStore(path, clock=clock) as store:
        log = store._replica.opened_log()

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(log, "append", full)
        with pytest.raises(LeasemillError):
            store.claim("me", ["q"], 1)
    assert lines(caplog) == []
