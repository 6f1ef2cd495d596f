"""What hooks see of jobs that succeed, fail and are retried: the same on every store and with every executor."""

from __future__ import annotations

import os

from leasemill import App, Context, JobEvent, JobState, RetryAfter
from leasemill.operator.fingerprint import fingerprint
from tests.worker.support import drained, working
from tests.worker.support import until as wait_until

app = App("memory:", retry=0)
log: list[str] = []
events: list[JobEvent] = []


def note(what: str, event: JobEvent) -> None:
    log.append(f"{what} {event.job_id}#{event.attempt}")
    events.append(event)


@app.on_start
def starts(event: JobEvent) -> None:
    note("start", event)


@app.on_success
async def succeeds(event: JobEvent) -> None:
    note("success", event)


@app.on_retry
def is_retried(event: JobEvent) -> None:
    note("retry", event)


@app.on_failure
async def fails(event: JobEvent) -> None:
    note("failure", event)


@app.on_lost
def is_lost(event: JobEvent) -> None:
    note("lost", event)


@app.job
def in_thread(what: str) -> int:
    return _work(what)


@app.job
async def in_task(what: str) -> int:
    return _work(what)


@app.job(executor="process", max_expirations=1)
def in_process(what: str) -> int:
    return _work(what)


def _work(what: str) -> int:
    match what:
        case "raises":
            raise ValueError("no stock of 7") from KeyError("shelf")
        case "exits":
            os._exit(3)
        case _:
            return os.getpid()


@app.job(retry=1)
def fails_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RetryAfter(0, "not yet")


@in_thread.on_failure
def own(event: JobEvent) -> None:
    note("own failure", event)


def clear() -> None:
    log.clear()
    events.clear()


def of(job_id: str) -> list[str]:
    return [line.partition(" ")[0] for line in log if f" {job_id}#" in line and not line.startswith("own")]


def event(what: str, job_id: str) -> JobEvent:
    (found,) = [one for line, one in zip(log, events, strict=True) if line.startswith(f"{what} {job_id}#")]
    return found


async def hooks_see_every_end_with_every_executor() -> None:
    """On the store that the app is bound to."""
    clear()
    for job in (in_thread, in_task, in_process):
        job.options(job_id=f"{job.kind}-ok", headers={"tenant": "acme"}).enqueue("works")
        job.options(job_id=f"{job.kind}-bad").enqueue("raises")
    fails_once.options(job_id="once").enqueue()
    await drained(app, concurrency=3)
    for kind in ("in_thread", "in_task", "in_process"):
        assert of(f"{kind}-ok") == ["start", "success"]
        assert of(f"{kind}-bad") == ["start", "failure"]
        good, bad = event("success", f"{kind}-ok"), event("failure", f"{kind}-bad")
        assert (good.kind, good.queue, good.attempt, dict(good.headers)) == (kind, "default", 1, {"tenant": "acme"})
        assert good.seconds is not None
        assert (good.error, good.exception, good.fingerprint, good.next_at) == (None, None, None, None)
        record = app.handle(f"{kind}-bad").record()
        assert bad.error == record.executions[-1].error
        assert bad.error is not None
        assert bad.error.startswith("ValueError: no stock of 7 (caused by KeyError: 'shelf')")
        assert bad.fingerprint == fingerprint(record)
        assert bad.exception is not None
        if kind != "in_process":
            assert isinstance(bad.exception, ValueError)
            assert isinstance(bad.exception.__cause__, KeyError)
        assert app.handle(f"{kind}-ok").result(0) != os.getpid() or kind != "in_process"
    assert [line for line in log if line.startswith("own")] == ["own failure in_thread-bad#1"]
    assert sorted(of("once")) == ["retry", "start", "start", "success"], "the next run does not wait for a hook"
    retry = event("retry", "once")
    assert retry.error == "RetryAfter: not yet"
    assert retry.next_at is not None


async def a_process_that_dies_is_a_failure_without_an_exception() -> None:
    clear()
    handle = in_process.options(job_id="dies").enqueue("exits")
    await drained(app)
    assert handle.status() is JobState.DEAD
    assert of("dies") == ["start", "failure"]
    died = event("failure", "dies")
    assert (died.error, died.exception) == ("its process ended with exit status 3", None)
    assert died.fingerprint == fingerprint(handle.record())


async def a_cancelled_run_is_lost_with_its_reason(job_id: str = "gone") -> None:
    clear()
    handle = waits.options(job_id=job_id).enqueue()
    async with working(app):
        await wait_until(lambda: of(job_id) == ["start"])
        handle.cancel(reason="shows a loss")
        await wait_until(lambda: of(job_id) == ["start", "lost"])
    assert event("lost", job_id).reason == "cancelled"
    assert of(job_id) == ["start", "lost"]


@app.job
def waits(ctx: Context) -> None:
    ctx.lost.wait(60)
