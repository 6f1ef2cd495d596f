"""Hooks on what becomes of jobs: order, errors, per app and per job, and what a worker owes them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from leasemill import App, Context, Fail, JobEvent, JobState, Release
from leasemill.api.logs import fields_of
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.operator.fingerprint import QUARANTINED, fingerprint
from leasemill.store.factory import open_store
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain, drain, in_memory
from leasemill.testing.jobs import Jobs
from leasemill.worker import decisions, hook_calls
from tests.worker import hook_suite
from tests.worker.support import FaultyStore, drained, until, working

HOOKS = ("on_start", "on_success", "on_retry", "on_failure", "on_lost")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_calls, "PATIENCE_S", 0.05)


def watched(app: App, seen: list[str]) -> None:
    """Note every event, by the name of its hook."""
    for name in HOOKS:

        def note(event: JobEvent, name: str = name) -> None:
            seen.append(f"{name[3:]} {event.kind}#{event.attempt}")

        getattr(app, name)(note)


@pytest.mark.parametrize("url", ["memory:", "file:"])
async def test_hooks_see_every_end_with_every_executor(url: str, tmp_path: Path) -> None:
    with open_store(url if url == "memory:" else f"file:{tmp_path / 'jobs'}") as store, hook_suite.app.bound_to(store):
        await hook_suite.hooks_see_every_end_with_every_executor()
        await hook_suite.a_process_that_dies_is_a_failure_without_an_exception()
        await hook_suite.a_cancelled_run_is_lost_with_its_reason()


async def test_hooks_run_in_the_order_of_declaration_the_apps_first(app: App) -> None:
    seen: list[str] = []

    @app.job
    async def run() -> None: ...

    @app.job
    async def other() -> None: ...

    @run.on_success
    def own_sync(event: JobEvent) -> None:
        seen.append(f"own sync {event.kind}")

    @app.on_success
    async def of_app_async(event: JobEvent) -> None:
        await asyncio.sleep(0)
        seen.append(f"app async {event.kind}")

    @app.on_success
    def of_app_sync(event: JobEvent) -> None:
        seen.append(f"app sync {event.kind}")

    @run.on_success
    async def own_async(event: JobEvent) -> None:
        seen.append(f"own async {event.kind}")

    run.enqueue()
    await drained(app)
    assert seen == ["app async run", "app sync run", "own sync run", "own async run"]
    seen.clear()
    other.enqueue()
    await drained(app)
    assert seen == ["app async other", "app sync other"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_around_of_a_job_is_inside_the_apps_and_around_no_other_job(app: App, is_async: bool) -> None:
    seen: list[str] = []

    @app.job(name="async")
    async def run_async() -> None:
        seen.append("run")

    @app.job(name="sync")
    def run_sync() -> None:
        seen.append("run")

    job, other = (run_async, run_sync) if is_async else (run_sync, run_async)

    @job.around
    @contextmanager
    def inner(ctx: Context) -> Iterator[None]:
        seen.append(f"in {ctx.kind}")
        yield
        seen.append("out")

    @app.around
    @contextmanager
    def outer(ctx: Context) -> Iterator[None]:
        seen.append("outer in")
        yield
        seen.append("outer out")

    job.options(priority=1).enqueue()
    await drained(app)
    assert seen == ["outer in", f"in {job.kind}", "run", "out", "outer out"]
    seen.clear()
    other.enqueue()
    await drained(app)
    assert seen == ["outer in", "run", "outer out"]


async def test_a_job_with_options_has_the_hooks_of_its_declaration(app: App) -> None:
    seen: list[str] = []

    @app.job
    async def run() -> None: ...

    run.options(queue="other").on_success(lambda event: seen.append(event.queue))
    run.enqueue()
    run.options(queue="other").enqueue()
    await drained(app, queues=["default", "other"])
    assert sorted(seen) == ["default", "other"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), asyncio.CancelledError()])
async def test_an_error_in_a_hook_is_logged_and_changes_nothing(
    app: App, caplog: pytest.LogCaptureFixture, is_async: bool, error: BaseException
) -> None:
    seen: list[str] = []

    def broken(event: JobEvent) -> None:
        raise error

    async def broken_async(event: JobEvent) -> None:
        raise error

    for name in HOOKS:
        getattr(app, name)(broken_async if is_async else broken)
    watched(app, seen)

    @app.job(retry=0)
    def fails() -> None:
        raise ValueError("as it should")

    @app.job
    def works() -> int:
        return 7

    failed, succeeded = fails.enqueue(), works.enqueue()
    await drained(app)
    assert succeeded.result(0) == 7
    assert failed.status() is JobState.FAILED
    assert failed.record().attempt == 1
    assert sorted(seen) == ["failure fails#1", "start fails#1", "start works#1", "success works#1"]
    lines = [one for one in caplog.records if one.name == "leasemill.hooks"]
    assert len(lines) == 4
    assert {(one.levelname, one.exc_info is not None and one.exc_info[1] is error) for one in lines} == {
        ("ERROR", True)
    }
    assert {vars(one)["job"] for one in lines} == {failed.id, succeeded.id}
    assert "broken" in lines[0].getMessage()


async def test_on_success_runs_when_the_ack_is_answered_and_not_before(app: App, store: FaultyStore) -> None:
    states: list[JobState] = []

    @app.on_success
    def look(event: JobEvent) -> None:
        states.append(app.handle(event.job_id).status())

    @app.job
    async def run() -> None: ...

    store.fail(c.Ack, "before", "after")
    run.enqueue()
    await drained(app)
    assert states == [JobState.SUCCEEDED]


async def test_on_retry_knows_when_the_job_runs_next_and_on_failure_that_it_does_not(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    found: list[tuple[str, JobEvent]] = []
    app.on_retry(lambda event: found.append(("retry", event)))
    app.on_failure(lambda event: found.append(("failure", event)))

    @app.job(retry=1)
    def fails(number: int) -> None:
        raise ValueError(f"no {number}")

    handle = fails.enqueue(7)
    await drained(app)
    ((what, event),) = found
    due_at = handle.record().available_at
    assert what == "retry"
    assert event.next_at == datetime.fromtimestamp(due_at / SECOND, UTC)
    assert event.next_at > datetime.fromtimestamp(clock.now() / SECOND, UTC)
    clock.advance(us=due_at - clock.now())
    await drained(app)
    what, last = found[-1]
    assert (what, last.attempt, last.next_at) == ("failure", 2, None)
    assert last.fingerprint == event.fingerprint == fingerprint(handle.record())
    assert isinstance(last.exception, ValueError)


async def test_a_permanent_failure_an_invalid_result_and_a_timeout_are_failures(app: App) -> None:
    found: dict[str, JobEvent] = {}
    app.on_failure(lambda event: found.update({event.kind: event}))

    @app.job
    def given_up() -> None:
        raise Fail("never") from OSError("gone")

    @app.job(retry=0)
    def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    @app.job(retry=0, timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    for job in (given_up, wrong, slow):
        job.enqueue()
    await drained(app)
    assert isinstance(found["given_up"].exception, Fail)
    assert found["wrong"].exception is None
    assert (found["wrong"].error or "").startswith("InvalidResult: ")
    assert found["slow"].exception is None
    assert (found["slow"].error or "").startswith("TimeoutError: ")


async def test_a_job_without_a_handler_fails_with_the_apps_hooks(app: App, store: FaultyStore) -> None:
    found: list[JobEvent] = []
    app.on_failure(found.append)
    app.job(_noop)
    app.named("unknown", queue="default").enqueue()
    await drained(app, mismatch_timeout=0)
    assert [(one.kind, one.exception) for one in found] == [("unknown", None)]


async def _noop() -> None: ...


async def test_what_is_given_back_has_no_hook_but_on_start(app: App, clock: ManualClock) -> None:
    seen: list[str] = []
    watched(app, seen)

    @app.job
    def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Release(5)

    later.enqueue()
    await drained(app)
    assert seen == ["start later#1"]
    clock.advance(s=5)
    await drained(app)
    assert seen == ["start later#1", "start later#2", "success later#2"]


async def test_a_run_that_failed_after_its_commit_is_a_success_with_its_error(app: App) -> None:
    found: list[JobEvent] = []
    app.on_success(found.append)

    @app.job
    def run(ctx: Context) -> None:
        with ctx.commit():
            pass
        raise ValueError("too late to matter")

    run.enqueue()
    await drained(app)
    assert [(one.error or "").partition("\n")[0] for one in found] == ["ValueError: too late to matter"]
    assert isinstance(found[0].exception, ValueError)


async def test_a_lease_whose_loss_is_known_from_the_refused_report_alone_is_lost(app: App, store: FaultyStore) -> None:
    seen: list[str] = []
    watched(app, seen)

    @app.job
    async def run(ctx: Context) -> None:
        store.cancel([ctx.job_id], by="a test", reason="shows a loss")  # no heartbeat comes in between

    run.enqueue()
    await drained(app)
    assert seen == ["start run#1", "lost run#1"]


async def test_a_job_that_another_worker_left_for_the_last_time_is_a_failure(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    found: list[JobEvent] = []
    app.on_failure(found.append)

    @app.job(max_expirations=1)
    async def run() -> None: ...

    handle = run.options(headers={"tenant": "acme"}).enqueue()
    (lease,) = store.claim("dead", ["default"], 1, kinds={"run": run.policy})
    store.start([c.StartReport(lease.job.id, lease.token)])
    clock.advance(s=3600)
    async with working(app):
        await until(lambda: found)
    assert handle.status() is JobState.DEAD
    assert [(one.job_id, one.worker, one.error) for one in found] == [(handle.id, "dead", QUARANTINED)]
    assert found[0].fingerprint == fingerprint(handle.record())
    assert dict(found[0].headers) == {"tenant": "acme"}


async def test_the_handler_waits_for_on_start_and_its_time_begins_after_it(app: App) -> None:
    is_open = threading.Event()
    began = threading.Event()
    seen: list[str] = []

    @app.on_start
    def gate(event: JobEvent) -> None:
        began.set()
        assert is_open.wait(30)
        seen.append("hook")

    @app.job(timeout=60)
    async def run(ctx: Context) -> None:
        seen.append("handler" if ctx.seconds_left > 59 else "the hook's time was the handler's")

    run.enqueue()
    async with working(app) as worker:
        await until(began.is_set)
        await asyncio.sleep(0)  # the event loop is free while a sync hook waits
        assert seen == []
        assert worker.metrics.started == 0
        is_open.set()
        await until(lambda: worker.metrics.succeeded)
    assert seen == ["hook", "handler"]


async def test_a_run_that_is_lost_or_stopped_before_its_handler_never_calls_it(app: App) -> None:
    is_open, ran = asyncio.Event(), []
    seen: list[str] = []
    watched(app, seen)

    @app.on_start
    async def gate(event: JobEvent) -> None:
        await is_open.wait()

    @app.job
    async def run(name: str) -> None:
        ran.append(name)

    lost, stopped = run.enqueue("lost"), run.enqueue("stopped")
    async with working(app, heartbeat_interval=0.01, shutdown_timeout=0.2):
        await until(lambda: len(seen) == 2)
        lost.cancel(reason="shows a loss")
        await until(lambda: "lost run#1" in seen)
    assert ran == []
    assert stopped.status() is JobState.READY
    assert stopped.record().retries == 0


async def test_a_stop_waits_for_hooks_under_way(app: App) -> None:
    began, is_open, ended = threading.Event(), threading.Event(), []

    @app.on_success
    def slow(event: JobEvent) -> None:
        began.set()
        assert is_open.wait(30)
        ended.append(event.job_id)

    @app.job
    async def run() -> None: ...

    handle = run.enqueue()
    async with working(app) as worker:
        await until(began.is_set)
        assert handle.status() is JobState.SUCCEEDED
        worker.stop()
        await until(lambda: worker.shutdown.is_requested)
        is_open.set()
    assert ended == [handle.id]


async def test_a_stop_does_not_wait_for_hooks_longer_than_its_timeout(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    began, is_open = threading.Event(), threading.Event()

    @app.on_success
    def stuck(event: JobEvent) -> None:
        began.set()
        is_open.wait(60)

    @app.job
    async def run() -> None: ...

    run.enqueue()
    try:
        async with working(app, shutdown_timeout=0.3):
            await until(began.is_set)
    finally:
        is_open.set()
    assert "1 hook had not ended when the worker stopped" in caplog.text


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_that_does_not_end_keeps_neither_jobs_nor_other_hooks(
    app: App, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    is_open, seen = threading.Event(), []

    def stuck(event: JobEvent) -> None:
        is_open.wait(60)

    async def stuck_async(event: JobEvent) -> None:
        await asyncio.sleep(60)

    for declare in (app.on_start, app.on_success):
        declare(stuck_async if is_async else stuck)
    app.on_success(lambda event: seen.append(event.job_id))

    @app.job
    async def run() -> None: ...

    handles = [run.enqueue() for _ in range(12)]
    try:
        await drained(app)
    finally:
        is_open.set()
    assert sorted(seen) == sorted(handle.id for handle in handles)
    assert len([one for one in caplog.records if "has not ended after 0.05 s" in one.getMessage()]) == 24


async def test_a_hook_that_cancels_its_own_task_keeps_neither_other_hooks_nor_the_worker(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def numbered(number: int) -> None: ...

    @app.on_success
    async def cancels_itself(event: JobEvent) -> None:
        called.append(event.job_id)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    called: list[str] = []
    handles = [numbered.enqueue(number) for number in range(3)]
    await drained(app)
    assert sorted(called) == sorted(handle.id for handle in handles)
    assert caplog.text.count("a hook has cancelled the task it ran in") == 3


async def test_sync_hooks_run_off_the_event_loop_and_async_ones_on_it(app: App) -> None:
    where: dict[str, str] = {}
    app.on_success(lambda event: where.update(sync=threading.current_thread().name))

    @app.on_success
    async def on_loop(event: JobEvent) -> None:
        where["async"] = threading.current_thread().name

    class Callable_:  # noqa: N801
        async def __call__(self, event: JobEvent) -> None:
            where["object"] = threading.current_thread().name

    app.on_success(Callable_())

    @app.job
    def run() -> None: ...

    run.enqueue()
    worker = await drained(app)
    loop = threading.current_thread().name
    assert where["sync"].startswith(f"{worker.id}-hook")
    assert (where["async"], where["object"]) == (loop, loop)


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_hook_sets_does_not_show_in_the_hooks_of_another_job(app: App, is_async: bool) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    def first(event: JobEvent) -> None:
        seen.append(tenant.get())
        tenant.set(event.job_id)

    def second(event: JobEvent) -> None:
        assert tenant.get() == event.job_id
        seen.append("its own")

    async def first_async(event: JobEvent) -> None:
        first(event)

    async def second_async(event: JobEvent) -> None:
        second(event)

    app.on_success(first_async if is_async else first)
    app.on_success(second_async if is_async else second)

    @app.job
    async def run() -> None: ...

    run.enqueue_many(run.call() for _ in range(300))
    await drained(app)
    assert seen.count("nobody") == seen.count("its own") == 300


async def test_a_worker_whose_hooks_do_not_keep_up_claims_fewer_jobs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_calls, "WAITING_MOST", 5)
    is_open, seen = threading.Event(), []

    @app.on_success
    def slow(event: JobEvent) -> None:
        is_open.wait(60)
        seen.append(event.job_id)

    @app.job
    async def run() -> None: ...

    run.enqueue_many(run.call() for _ in range(200))
    async with working(app, concurrency=2, prefetch=0) as worker:
        await until(
            lambda: (
                worker.metrics.succeeded
                and worker.slots.is_idle
                and worker.reporter.unreported == 0
                and decisions.room(worker.store_loop.look()) == 0
            )
        )
        assert worker.metrics.claimed < 200
        is_open.set()
        await until(lambda: len(seen) == 200)


async def test_a_hook_that_enqueues_is_part_of_a_drain(app: App) -> None:
    @app.job
    async def first() -> None: ...

    @app.job
    async def second() -> None: ...

    @first.on_success
    def enqueue(event: JobEvent) -> None:
        second.options(job_id="made by a hook").enqueue()

    first.enqueue()
    await drained(app)
    assert app.handle("made by a hook").status() is JobState.SUCCEEDED


async def test_hooks_have_what_the_lifespan_yielded(app: App) -> None:
    seen: list[Any] = []

    @app.lifespan
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "a client"
        seen.append("closed")

    @app.on_success
    async def use(event: JobEvent) -> None:
        await asyncio.sleep(0.01)
        seen.append(event.state)

    @app.job
    async def run() -> None: ...

    run.enqueue()
    await drained(app)
    assert seen == ["a client", "closed"]


def test_hooks_run_in_drain_and_in_the_plugins_jobs() -> None:
    app, seen = App("memory:"), list[str]()
    watched(app, seen)

    @app.job(retry=1, executor="process")
    def fails() -> None:
        raise ValueError("no")

    with in_memory(app) as clock:
        fails.enqueue()
        Jobs(app, clock).drain()
        assert seen == ["start fails#1", "retry fails#1"]
        drain(app, clock)
        assert seen[2:] == ["start fails#2", "failure fails#2"]


async def test_hooks_run_in_adrain() -> None:
    app, seen = App("memory:"), list[str]()
    watched(app, seen)

    @app.job
    def run() -> None: ...

    with in_memory(app):
        run.enqueue()
        await adrain(app)
    assert seen == ["start run#1", "success run#1"]


async def test_lines_that_a_hook_logs_carry_the_job(app: App) -> None:
    found: list[dict[str, Any]] = []

    def note(event: JobEvent) -> None:
        found.append(fields_of(logging.makeLogRecord({"msg": "from a hook"})))

    @app.on_success
    async def note_async(event: JobEvent) -> None:
        note(event)

    app.on_success(note)

    @app.job
    async def run() -> None: ...

    handle = run.enqueue()
    worker = await drained(app)
    expected = {"worker": worker.id, "job": handle.id, "kind": "run", "attempt": 1}
    assert found == [expected, expected]


async def test_a_sync_hook_that_returns_a_coroutine_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async def forgotten(event: JobEvent) -> None: ...

    def forgets(event: JobEvent) -> Any:
        return forgotten(event)

    app.on_success(forgets)

    @app.job
    async def run() -> None: ...

    run.enqueue()
    await drained(app)
    assert "declare the hook with `async def`" in caplog.text


@pytest.mark.parametrize("name", ["around", *HOOKS])
def test_what_is_not_a_function_is_refused_where_it_is_written(app: App, name: str) -> None:
    @app.job
    def run() -> None: ...

    for declares in (app, run):
        declare: Callable[[Any], Any] = getattr(declares, name)
        with pytest.raises(Invalid, match=f"{name} takes a function"):
            declare("a name")


async def test_without_hooks_nothing_is_put_together_for_them(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("an event was made")

    monkeypatch.setattr("leasemill.worker.hooks.JobEvent", fail)

    @app.job(retry=0)
    def fails() -> None:
        raise ValueError("no")

    @app.job
    def works() -> None: ...

    failed, succeeded = fails.enqueue(), works.enqueue()
    worker = await drained(app)
    assert (failed.status(), succeeded.status()) == (JobState.FAILED, JobState.SUCCEEDED)
    assert not worker.hooks.are_there
