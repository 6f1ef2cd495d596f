"""A blocked event loop: who blocked it is named, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import time

import pytest

from leasemill import App, JobState
from leasemill.worker.metrics import Metrics
from leasemill.worker.stalls import Stalls
from tests.worker.support import until, working


def block(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_job_does_not_time_out_because_another_blocked_the_loop(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout=60)
    async def blocker() -> None:
        deadline = time.monotonic() + 30
        while "has been blocked" not in caplog.text and time.monotonic() < deadline:
            block(0.1)
        block(1)

    @app.job(timeout=1, retry=0)
    async def innocent() -> str:
        await asyncio.sleep(0.01)
        return "ok"

    guilty, handle = blocker.enqueue(), innocent.enqueue()
    async with working(app) as worker:
        await until(lambda: worker.metrics.succeeded + worker.metrics.failed == 2, limit_s=60)
    assert handle.result(0) == "ok"
    assert (worker.metrics.timed_out, worker.metrics.loop_blocked) == (0, 1)
    assert worker.metrics.loop_stalled_seconds > 1
    (line,) = [record for record in caplog.records if "has been blocked" in record.message][:1]
    assert "by the handler of blocker" in line.message
    assert "in block\n" in line.message, "the stack goes down to what blocks"
    assert (vars(line)["job"], vars(line)["worker"]) == (guilty.id, worker.id)


async def test_a_handler_that_blocks_the_loop_pays_for_it_itself(app: App) -> None:
    @app.job(timeout=1, retry=0)
    async def blocks_again_and_again() -> None:
        while True:
            block(0.4)
            await asyncio.sleep(0)

    handle = blocks_again_and_again.enqueue()
    async with working(app) as worker:
        await until(lambda: worker.metrics.failed, limit_s=60)
    assert handle.status() is JobState.FAILED
    assert worker.metrics.timed_out == 1


async def test_a_block_is_logged_once_and_again_after_twice_the_time(caplog: pytest.LogCaptureFixture) -> None:
    now, metrics = [100.0], Metrics()
    stalls = Stalls("w", metrics, running=list, on_end=lambda error: None, monotonic=lambda: now[0])

    def lines_at(*seconds: float) -> int:
        caplog.clear()
        for second in seconds:
            now[0] = 100 + second
            stalls.look()
        return len([record for record in caplog.records if "has been blocked" in record.message])

    stalls.watch()
    assert lines_at(0.1, 0.9) == 0
    assert lines_at(1.0, 1.1, 1.9) == 1
    assert lines_at(2.0, 2.1, 3.9) == 1
    assert lines_at(4.0, 4.1, 7.9) == 1
    assert metrics.loop_blocked == 1
    stalls.alive()
    assert stalls.total_s == pytest.approx(7.9)
    assert lines_at(8.5) == 0
    assert lines_at(9.0, 9.1) == 1, "another block"
    assert metrics.loop_blocked == 2


async def test_short_pauses_of_the_loop_are_no_stalls() -> None:
    now = [100.0]
    stalls = Stalls("w", Metrics(), running=list, on_end=lambda error: None, monotonic=lambda: now[0])
    stalls.alive()
    stalls.watch()
    for _ in range(100):
        now[0] += 0.2
        stalls.alive()
    assert stalls.total_s == 0
