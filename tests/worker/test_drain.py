"""A worker that drains: when it ends, and what it reports of the jobs that it leaves."""

from __future__ import annotations

import logging

import pytest

from leasemill import App, Invalid, JobState, RetryAfter, Worker
from tests.worker.support import drained


async def test_a_drain_leaves_retries_and_logs_how_many_wait_and_for_when(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def flaky() -> None:
        raise RetryAfter(3_600)

    @app.job
    async def later() -> None: ...

    caplog.set_level(logging.INFO)
    handle = flaky.enqueue()
    later.options(delay=7_200).enqueue()
    await drained(app)
    assert handle.status() is JobState.READY
    (line,) = [one.getMessage() for one in caplog.records if "no job is due" in one.getMessage()]
    assert line.startswith("no job is due: 2 jobs left waiting, the next is due in ")
    assert line.endswith("; --drain-wait SECONDS waits for it")


async def test_a_drain_that_waits_does_not_advise_to_wait(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job
    async def later() -> None: ...

    caplog.set_level(logging.INFO)
    later.options(delay=7_200).enqueue()
    await drained(app, drain_wait=1)
    (line,) = [one.getMessage() for one in caplog.records if "no job is due" in one.getMessage()]
    assert line.startswith("no job is due: 1 job left waiting, the next is due in ")
    assert "--drain-wait" not in line


async def test_a_drain_that_left_nothing_says_nothing_of_waiting_jobs(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def quick() -> None: ...

    caplog.set_level(logging.INFO)
    quick.enqueue()
    await drained(app)
    assert "left waiting" not in caplog.text


async def test_a_drain_can_wait_for_what_is_due_soon_and_for_nothing_else(app: App) -> None:
    tries: list[int] = []

    @app.job
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise RetryAfter(0.05)
        return len(tries)

    @app.job
    async def later() -> None: ...

    handle, tomorrow = flaky.enqueue(), later.options(delay=86_400).enqueue()
    await drained(app, drain_wait=30)
    assert (handle.result(0), tomorrow.status()) == (3, JobState.READY)


def test_a_time_to_wait_is_for_a_drain(app: App) -> None:
    @app.job
    async def quick() -> None: ...

    with pytest.raises(Invalid, match="is for a worker that drains"):
        Worker(app, drain_wait=5)
