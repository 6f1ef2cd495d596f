"""Two versions of the code on one store: a job that does not match one of them waits for the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any
from unittest.mock import Mock

import pytest

from leasemill import App, Context, JobState, Worker
from leasemill.errors import Invalid, JobConflict, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, AbortReason, JobSpec
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker import pacing, unmatched
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Run
from tests.worker.support import FaultyStore, drained, until, working

HOUR_US = 3600 * SECOND


@pytest.fixture
def old(store: FaultyStore) -> App:
    app = App(store=store)

    @app.job
    def send(to: str) -> str:
        return f"old {to}"

    return app


@pytest.fixture
def new(store: FaultyStore) -> App:
    app = App(store=store)

    @app.job
    def send(to: str, cc: str | None = None) -> str:
        return f"new {to} {cc}"

    return app


async def tried_for(app: App, clock: ManualClock, us: int, job_id: str = "job", **options: Any) -> list[Worker]:
    """Workers of this app claim the job whenever it is due, until it has ended or the time has passed."""
    end, workers = clock.now() + us, []
    for number in itertools.count():
        workers.append(await drained(app, worker_id=f"worker-{number}", **options))
        job = app.handle(job_id).record()
        if job.state is not JobState.READY or job.available_at > end:
            return workers
        clock.advance(us=max(0, job.available_at - clock.now()))
    raise AssertionError


@rule("E7")
async def test_a_call_that_does_not_use_a_new_parameter_runs_in_the_old_version(old: App, new: App) -> None:
    handle = new.jobs["send"].enqueue("ada")
    await drained(old)
    assert handle.result(0) == "old ada"


@rule("E7", "E2")
def test_the_same_id_and_call_in_two_versions_is_the_same_job(old: App, new: App) -> None:
    old.jobs["send"].options(job_id="one").enqueue("ada")
    assert new.jobs["send"].options(job_id="one").enqueue("ada", cc=None).is_duplicate
    assert old.jobs["send"].options(job_id="one").enqueue(to="ada").is_duplicate
    with pytest.raises(JobConflict):
        new.jobs["send"].options(job_id="one").enqueue("ada", cc="bob")


@rule("F8")
async def test_a_call_with_a_new_parameter_waits_for_the_new_version(old: App, new: App, clock: ManualClock) -> None:
    handle = new.jobs["send"].options(job_id="job").enqueue("ada", cc="bob")
    await tried_for(old, clock, HOUR_US // 2)
    job = handle.record()
    assert (job.state, job.retries) == (JobState.READY, 0)
    assert {one.reason for one in job.executions} == {AbortReason.RELEASED}
    assert {one.started_at for one in job.executions} == {None}
    clock.advance(us=job.available_at - clock.now())
    await drained(new)
    assert handle.result(0) == "new ada bob"


@rule("F8")
async def test_a_job_of_a_removed_parameter_waits_for_the_version_that_has_it(
    old: App, new: App, clock: ManualClock
) -> None:
    handle = old.jobs["send"].enqueue("ada")

    after = App(store=old.store)

    @after.job
    def send() -> str:
        return "nobody"

    await drained(after)
    assert "unknown argument 'to'" in (handle.record().executions[0].error or "")
    clock.advance(s=2)
    await drained(new)
    assert handle.result(0) == "new ada None"


@rule("F8")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (JobSpec("job", "default", "send_fax"), "no handler for kind 'send_fax'"),
        (JobSpec("job", "default", "send", b'{"to":"a","bcc":"b"}'), "send: unknown argument 'bcc'"),
        (JobSpec("job", "default", "send", b"{}"), "send: missing argument 'to'"),
        (JobSpec("job", "default", "send", b'{"to":7}'), "send: argument 'to': Expected `str`, got `int`"),
        (JobSpec("job", "default", "send", b"[1]"), "send: Expected `object`, got `array`"),
    ],
)
async def test_what_does_not_match_is_given_back_and_fails_after_an_hour(
    old: App, clock: ManualClock, store: FaultyStore, spec: JobSpec, why: str
) -> None:
    store.enqueue([spec])
    began = clock.now()
    workers = await tried_for(old, clock, 2 * HOUR_US)
    job = old.handle("job").record()
    *given_back, last = job.executions
    assert all(one.error == f"Mismatch: {why}; it fails after 1.0 h without code that matches" for one in given_back)
    assert job.state is JobState.FAILED
    assert (last.error or "").startswith(f"Mismatch: {why}\nno worker's code matched since ")
    assert HOUR_US <= last.leased_at - began <= HOUR_US + 120 * SECOND
    assert sum(worker.metrics.mismatched for worker in workers) == len(job.executions) < 100
    assert sum(worker.metrics.failed for worker in workers) == 1


@rule("F8")
async def test_the_hour_begins_again_when_a_handler_has_begun(old: App, new: App, clock: ManualClock) -> None:
    @new.job
    def flaky(fails: bool) -> None:
        if fails:
            raise ValueError("not yet")

    handle = flaky.options(job_id="job").enqueue(True)
    await tried_for(old, clock, HOUR_US - 120 * SECOND)
    clock.advance(us=max(0, handle.record().available_at - clock.now()))
    await drained(new)
    assert handle.record().retries == 1
    clock.advance(s=HOUR_US // SECOND)
    await drained(old)
    assert handle.status() is JobState.READY
    await tried_for(old, clock, 2 * HOUR_US)
    assert handle.status() is JobState.FAILED


@rule("F8", "O2")
async def test_the_hour_begins_again_after_a_redrive(old: App, store: FaultyStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("job", "default", "send_fax")])
    await tried_for(old, clock, 2 * HOUR_US)
    store.redrive(c.JobFilter(job_ids=("job",)), by="ada", reason="deployed")
    await drained(old)
    assert old.handle("job").status() is JobState.READY


@rule("F8")
async def test_an_hour_is_counted_through_a_shutdown_and_a_dead_worker(
    old: App, store: FaultyStore, clock: ManualClock
) -> None:
    store.enqueue([JobSpec("job", "default", "send_fax")])
    await drained(old)
    clock.advance(s=60)
    (lease,) = store.claim("other", ["default"], 1)
    store.release([c.ReleaseReport("job", lease.token)])
    store.claim("dies", ["default"], 1)
    clock.advance(s=HOUR_US // SECOND)
    await drained(old)
    assert old.handle("job").status() is JobState.FAILED


@rule("F8")
async def test_the_timeout_can_be_set_and_zero_fails_at_once(old: App, store: FaultyStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("job", "default", "send_fax")])
    await tried_for(old, clock, HOUR_US, mismatch_timeout=120)
    job = old.handle("job").record()
    assert job.state is JobState.FAILED
    assert 120 * SECOND <= job.executions[-1].leased_at - job.created_at < 200 * SECOND
    store.enqueue([JobSpec("two", "default", "send_fax")])
    await drained(old, mismatch_timeout=0)
    assert (old.handle("two").status(), old.handle("two").record().attempt) == (JobState.FAILED, 1)
    with pytest.raises(Invalid, match="mismatch timeout"):
        Worker(old, mismatch_timeout=-1)


@rule("F8")
async def test_a_record_that_cannot_be_read_fails_no_job(old: App, store: FaultyStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("job", "default", "send_fax")])
    await drained(old)
    clock.advance(s=2 * HOUR_US // SECOND)

    async def away(job_id: str) -> None:
        raise Unavailable("the store is away")

    store.ajob = away  # type: ignore[method-assign]
    await drained(old)
    assert store.job("job").state is JobState.READY  # type: ignore[union-attr]


async def test_a_worker_that_stops_while_it_reads_a_record_gives_the_job_back(
    old: App, store: FaultyStore, clock: ManualClock
) -> None:
    store.enqueue([JobSpec("job", "default", "send_fax")])
    await drained(old)
    clock.advance(s=2 * HOUR_US // SECOND)
    reads: list[str] = []

    async def hangs(job_id: str) -> None:
        reads.append(job_id)
        await asyncio.sleep(3600)

    store.ajob = hangs  # type: ignore[method-assign]
    async with working(old):
        await until(lambda: reads, "the read", 30)
    job = store.job("job")
    assert job is not None
    assert (job.state, job.attempt) == (JobState.READY, 2)


async def test_a_mismatch_is_logged_once_for_its_cause_and_then_once_a_minute(
    old: App, store: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue([JobSpec(f"fax-{number}", "default", "send_fax") for number in range(50)])
    store.enqueue([JobSpec(f"odd-{number}", "default", "send", b'{"to":%d}' % number) for number in range(50)])
    worker = await drained(old)
    lines = [record for record in caplog.records if "can't run the job" in record.message]
    assert sorted(vars(record)["kind"] for record in lines) == ["send", "send_fax"]
    assert lines[0].levelno == logging.WARNING
    assert worker.metrics.mismatched == 100
    assert worker.runner.unmatched.by_kind == {"send_fax": 50, "send": 50}

    caplog.clear()
    monkeypatch.setattr(unmatched, "LINE_EVERY_S", 0.0)
    store.enqueue([JobSpec("one", "default", "send_fax"), JobSpec("two", "default", "send_fax")])
    await drained(old)
    assert len([record for record in caplog.records if "can't run the job" in record.message]) == 2


def test_how_many_were_not_logged_is_in_the_next_line(
    store: FaultyStore, old: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue([JobSpec(f"fax-{number}", "default", "send_fax") for number in range(5)])
    reporter = Mock(Reporter)
    found = unmatched.UnmatchedJobs(store, Worker(old).metrics, reporter, 3600)
    runs = [Run(lease, None, 0.0) for lease in store.claim("worker", ["default"], 5)]
    for run in runs[:4]:
        found.take(run, "no handler")
    monkeypatch.setattr(unmatched, "LINE_EVERY_S", 0.0)
    found.take(runs[4], "no handler")
    line = "this worker can't run the job (no handler); released for another worker, FAILED in 1.0 h if none can"
    assert [record.message for record in caplog.records] == [
        line,
        f"{line} (3 more like it since the last such line)",
    ]
    assert reporter.send.call_count == 5


def test_a_mismatched_job_is_left_alone_longer_each_time_up_to_a_sixtieth_of_the_timeout() -> None:
    delays = [pacing.mismatch_delay_us(tries, 3600, 0.999999) for tries in range(1, 12)]
    assert [round(one / SECOND) for one in delays] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert pacing.mismatch_delay_us(10_000, 3600, 0.0) == 45 * SECOND
    assert pacing.mismatch_delay_us(10_000, 24 * 3600, 0.999999) > 23 * 60 * SECOND
    assert pacing.mismatch_delay_us(0, 0, 0.999999) <= SECOND


# Renamed jobs ----------------------------------------------------------------------------------------------------


async def test_a_renamed_job_still_runs_jobs_of_its_earlier_kinds(old: App, store: FaultyStore) -> None:
    renamed = App(store=store)

    @renamed.job(name="send_mail", aliases=["send"], lease=7)
    def send_mail(ctx: Context, to: str) -> str:
        return f"{ctx.kind} {to}"

    before = old.jobs["send"].enqueue("ada")
    after = send_mail.enqueue("bob")
    worker = await drained(renamed)
    assert (before.result(0), after.result(0)) == ("send ada", "send_mail bob")
    assert before.record().executions[0].terms.lease_ttl_us == 7 * SECOND
    assert worker.metrics.mismatched == 0
    assert list(renamed.jobs) == ["send_mail"]


def test_an_alias_that_is_another_jobs_kind_is_refused(old: App) -> None:
    with pytest.raises(Invalid, match="kind 'send' is declared twice"):

        @old.job(aliases=["send"])
        def other() -> None: ...

    with pytest.raises(Invalid, match=r"aliases is a string, 'send'; write a list: \['send'\]"):

        @old.job(aliases="send")
        def another() -> None: ...

    with pytest.raises(Invalid, match="alias"):

        @old.job(aliases=["no spaces"])
        def third() -> None: ...
