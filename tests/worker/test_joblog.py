"""Lines for jobs that ended: each has one while they are few, and one line sums them up when they are many."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time

import pytest

from leasemill import App, Context, Release, Retry, Worker
from leasemill.api import logs
from leasemill.worker import joblog
from tests.worker.support import drained, until, working


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasemill")


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if part in record.getMessage()]


async def test_each_job_that_ends_has_a_line_with_its_kind_outcome_and_time(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def send() -> None: ...

    @app.job(retry=Retry(max=1, base=0, cap=0))
    def charge() -> None:
        raise ValueError("no money")

    @app.job
    def later() -> None:
        raise Release(60)

    jobs = [send.enqueue(), charge.enqueue(), later.enqueue()]
    await drained(app)
    (succeeded,) = lines(caplog, "send succeeded in ")
    assert (vars(succeeded)["job"], vars(succeeded)["attempt"]) == (jobs[0].id, 1)
    details = vars(succeeded)[logs.DETAILS]
    assert details["outcome"] == "succeeded"
    assert details["ms"] >= 0
    assert len(lines(caplog, "and will be retried (retry 1 of 1): ValueError: no money")) == 1
    assert len(lines(caplog, "job failed for good after ")) == 1
    assert len(lines(caplog, "later was given back for 1.0 min by its handler after ")) == 1


async def test_a_job_whose_handler_a_shutdown_stops_has_a_line_too(app: App, caplog: pytest.LogCaptureFixture) -> None:
    commits = asyncio.Event()

    @app.job
    async def restart() -> None:
        await asyncio.sleep(60)

    @app.job
    async def charge(ctx: Context) -> None:
        async with ctx.commit():
            pass
        commits.set()
        await asyncio.sleep(60)

    job, _ = restart.enqueue(), charge.enqueue()
    worker = Worker(app, handle_signals=False)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(commits.wait(), 30)
    await until(lambda: worker.metrics.running == 2)
    worker.stop(now=True)
    await asyncio.wait_for(task, 30)
    (released,) = lines(caplog, "restart was released after ")
    assert released.getMessage().endswith(": the worker is stopping")
    assert (released.levelname, vars(released)["job"], vars(released)["attempt"]) == ("INFO", job.id, 1)
    assert vars(released)[logs.DETAILS]["outcome"] == "given back"
    assert len(lines(caplog, "charge had committed, so it succeeded, in ")) == 1


async def test_many_jobs_are_summed_up_and_failures_are_still_named(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblog, "WINDOW_S", 3600.0)  # ends with the worker, however slow the machine

    @app.job(retry=0)
    async def send(number: int) -> None:
        if number % 100 == 0:
            raise ValueError(f"number {number}")

    send.enqueue_many([send.call(number) for number in range(500)])
    await drained(app)
    (total,) = lines(caplog, " more jobs ended in ")
    named = lines(caplog, "send succeeded in ")
    failed = lines(caplog, "job failed for good after ")
    assert len(failed) == 5
    assert len(named) + len(failed) >= joblog.NAMED_MOST >= len(named)
    ended = {one["outcome"]: one["count"] for one in vars(total)[logs.DETAILS]["ended"]}
    assert ended["succeeded"] + len(named) == 495
    assert f"{ended['succeeded']} send succeeded (p50 " in total.getMessage()
    assert total.levelno == logging.INFO


async def test_failures_that_are_not_named_are_in_a_sum_at_warning(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblog, "WINDOW_S", 3600.0)
    caplog.set_level(logging.WARNING, "leasemill")

    @app.job(retry=0)
    async def charge(number: int) -> None:
        raise ValueError(f"number {number}")

    charge.enqueue_many([charge.call(number) for number in range(100)])
    await drained(app)
    assert len(lines(caplog, "job failed for good after ")) == 2 * joblog.NAMED_MOST
    (total,) = lines(caplog, " more jobs ended in ")
    assert (total.levelno, vars(total)[logs.DETAILS]["jobs"]) == (logging.WARNING, 80)


async def test_a_busy_worker_sums_up_every_second_and_names_jobs_again_when_it_is_quiet(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblog, "WINDOW_S", 0.2)
    monkeypatch.setattr(joblog, "NAMED_MOST", 2)

    def is_summed() -> bool:
        return any(" more " not in one.getMessage() for one in lines(caplog, " ended in "))

    @app.job
    async def send(number: int) -> None: ...

    async with working(app) as worker:
        deadline = time.monotonic() + 30
        while not is_summed() and time.monotonic() < deadline:
            send.enqueue_many([send.call(number) for number in range(50)])
            await asyncio.sleep(0.01)
        assert is_summed(), "a window of sums alone"
        await until(lambda: worker.metrics.succeeded == worker.metrics.claimed, limit_s=30)
        caplog.clear()
        while not lines(caplog, "send succeeded in ") and time.monotonic() < deadline + 30:
            send.enqueue(1)
            await asyncio.sleep(0.5)  # more than a window
        assert lines(caplog, "send succeeded in ")


async def test_machines_get_the_numbers_and_people_the_sentence(app: App) -> None:
    @app.job
    async def send() -> None: ...

    send.enqueue()
    logger = logging.getLogger("leasemill")
    outputs = {}
    handlers = []
    for name, formatter in {"json": logs.JsonFormatter(), "text": logs.TextFormatter()}.items():
        outputs[name] = io.StringIO()
        handler = logging.StreamHandler(outputs[name])
        handler.setFormatter(formatter)
        handlers.append(handler)
        logger.addHandler(handler)
    try:
        await drained(app, worker_id="mill-1")
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
    (line,) = [json.loads(one) for one in outputs["json"].getvalue().splitlines() if "send succeeded" in one]
    assert (line["worker"], line["kind"], line["attempt"], line["outcome"]) == ("mill-1", "send", 1, "succeeded")
    assert isinstance(line["ms"], float)
    assert not [one for one in outputs["json"].getvalue().splitlines() if "ended in" in one]
    (text,) = [one for one in outputs["text"].getvalue().splitlines() if "send succeeded" in one]
    assert text.endswith(" kind=send attempt=1]")


async def test_a_sum_carries_no_job(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "NAMED_MOST", 0)
    monkeypatch.setattr(joblog, "WINDOW_S", 0.01)
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("leasemill")
    logger.addHandler(handler)

    @app.job
    async def send() -> None: ...

    try:
        async with working(app, worker_id="mill-1"):
            send.enqueue()
            await until(lambda: "ended in" in output.getvalue(), limit_s=30)
    finally:
        logger.removeHandler(handler)
    (line,) = [json.loads(one) for one in output.getvalue().splitlines() if "ended in" in one]
    assert (line["worker"], line["jobs"], line["ended"][0]["kind"]) == ("mill-1", 1, "send")
    assert "job" not in line
