"""Failures of jobs in Sentry, with its own SDK and a transport that keeps what it would send."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

from leasemill import App, JobState
from leasemill.contrib.sentry import instrument
from leasemill.errors import Invalid
from leasemill.operator.fingerprint import fingerprint
from leasemill.store.factory import open_store
from leasemill.testing.drain import adrain, in_memory
from tests.contrib import sentry_jobs as jobs
from tests.worker.support import drained, until, working


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    with sentry_sdk.isolation_scope(), in_memory(jobs.app):
        yield jobs.begin().events
        sentry_sdk.get_global_scope().set_client(None)


def written(folder: Path) -> list[dict[str, Any]]:
    """What other processes have sent, all of it when they were flushed."""
    paths = sorted(path for path in folder.glob("*.json") if path.name != f"{os.getpid()}.json")
    return [event for path in paths for event in json.loads(path.read_text())]


def chain(event: dict[str, Any]) -> list[tuple[str, str]]:
    """The root cause comes first."""
    return [(one["type"], one["value"]) for one in event["exception"]["values"]]


@pytest.mark.parametrize("job", [jobs.in_thread, jobs.in_task], ids=["thread", "async"])
async def test_an_exception_arrives_with_its_cause_its_job_and_its_fingerprint(
    sent: list[dict[str, Any]], job: Any
) -> None:
    handle = job.enqueue(7)
    await drained(jobs.app)
    (event,) = sent
    assert chain(event) == [("KeyError", "'shelf'"), ("ShopError", "no stock of 7")]
    group = fingerprint(handle.record())
    assert event["fingerprint"] == ["leasemill", group]
    expected = {"kind": job.kind, "queue": "default", "job_id": handle.id, "attempt": "1", "fingerprint": group}
    found = {name: str(event["tags"][f"leasemill.{name}"]) for name in expected}
    assert found == expected
    assert event["transaction"] == job.kind
    assert event["contexts"]["job"]["id"] == handle.id
    functions = [frame["function"] for frame in event["exception"]["values"][1]["stacktrace"]["frames"]]
    assert functions[-2:] == [job.kind, "_fail"]


async def test_only_the_failure_after_the_last_retry_is_sent(sent: list[dict[str, Any]]) -> None:
    with in_memory(jobs.app) as clock:
        handle = jobs.tried_twice.enqueue()
        await adrain(jobs.app)
        assert (handle.status(), sent) == (JobState.READY, [])
        await adrain(jobs.app, clock)
        assert handle.status() is JobState.FAILED
    assert [event["tags"]["leasemill.attempt"] for event in sent] in ([2], ["2"])


async def test_every_attempt_is_sent_if_that_is_asked_for(sent: list[dict[str, Any]]) -> None:
    app = App("memory:")
    instrument(app, every_attempt=True)

    @app.job(retry=1)
    def fails() -> None:
        raise ValueError("no")

    @app.job(retry=1, timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    with in_memory(app) as clock:
        fails.enqueue()
        slow.enqueue()
        await adrain(app, clock)
    attempts = sorted((event["tags"]["leasemill.kind"], str(event["tags"]["leasemill.attempt"])) for event in sent)
    assert attempts == [("fails", "1"), ("fails", "2"), ("slow", "1"), ("slow", "2")]


async def test_what_is_given_back_put_off_or_lost_is_no_error(sent: list[dict[str, Any]]) -> None:
    for job in (jobs.later, jobs.given_back, jobs.throttled, jobs.loses):
        job.enqueue()
    await drained(jobs.app)
    assert sent == []


async def test_a_failure_on_purpose_is_sent_at_once_with_its_cause(sent: list[dict[str, Any]]) -> None:
    jobs.given_up.enqueue()
    await drained(jobs.app)
    (event,) = sent
    assert chain(event) == [("OSError", "gone"), ("Fail", "never")]


async def test_a_failure_after_the_commit_is_sent_since_no_retry_follows(sent: list[dict[str, Any]]) -> None:
    handle = jobs.after_commit.enqueue()
    await drained(jobs.app)
    assert handle.status() is JobState.SUCCEEDED
    (event,) = sent
    assert chain(event)[-1] == ("ShopError", "no stock of 7")


async def test_a_timeout_is_sent_as_text(sent: list[dict[str, Any]]) -> None:
    handle = jobs.slow.enqueue()
    await drained(jobs.app)
    (event,) = sent
    assert event["message"].startswith("TimeoutError: slow ran longer than its timeout")
    assert event["level"] == "error"
    assert event["fingerprint"] == ["leasemill", fingerprint(handle.record())]


@pytest.mark.parametrize("job", [jobs.tags_in_thread, jobs.tags_in_task], ids=["thread", "async"])
async def test_tags_and_breadcrumbs_of_a_job_do_not_leak_into_another(sent: list[dict[str, Any]], job: Any) -> None:
    names = [f"job-{number}" for number in range(20)]
    for name in names:
        job.enqueue(name)
    await drained(jobs.app, concurrency=4)
    jobs.says_nothing.enqueue()
    await drained(jobs.app, concurrency=1)
    *of_jobs, last = sent
    assert sorted(event["tags"]["mine"] for event in of_jobs) == sorted(names)
    for event in of_jobs:
        crumbs = [one["message"] for one in event["breadcrumbs"]["values"] if one["message"].startswith("crumb of")]
        assert crumbs == [f"crumb of {event['tags']['mine']}"]
    assert "mine" not in last["tags"]
    assert "leasemill.kind" not in (sentry_sdk.get_isolation_scope()._tags)


async def test_errors_in_the_log_that_are_not_about_a_failed_job_are_events_as_ever(sent: list[dict[str, Any]]) -> None:
    @jobs.app.on_success
    def broken(event: object) -> None:
        raise ValueError("in a hook")

    try:
        jobs.given_back.options(job_id="x").enqueue()
        with in_memory(jobs.app) as clock:
            jobs.given_back.options(job_id="x").enqueue()
            await adrain(jobs.app, clock)
    finally:
        jobs.app.hooks.on_success.remove(broken)
    logging.getLogger("shop").error("of the shop")
    assert [event["logger"] for event in sent] == ["leasemill.hooks", "shop"]


async def test_a_process_sends_what_it_raised_and_the_worker_that_it_died(
    sent: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.VARIABLE, str(tmp_path))
    with open_store("memory:") as store, jobs.app.bound_to(store):
        jobs.dies.enqueue()  # first: what it does not live to send is lost
        handle = jobs.in_process.enqueue(7)
        async with working(jobs.app, concurrency=1):
            await until(lambda: len(sent) == 1 and handle.status() is JobState.FAILED)
        group = fingerprint(handle.record())
    assert [event["message"] for event in sent] == ["its process ended with exit status 3"]
    logged, raised = written(tmp_path)
    assert (logged["logger"], logged["logentry"]["message"]) == ("shop", "logged in a process")
    assert chain(raised) == [("KeyError", "'shelf'"), ("ShopError", "no stock of 7")]
    assert raised["fingerprint"] == ["leasemill", group]


def test_a_worker_flushes_before_its_process_ends(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store, jobs.app.bound_to(store):
        jobs.in_thread.enqueue(7)
    environment = os.environ | {jobs.VARIABLE: str(tmp_path), "LEASEMILL_TEST_SENTRY_URL": url}
    command = [sys.executable, "-m", "leasemill", "worker", "tests.contrib.sentry_jobs:app", "--drain"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [event["tags"]["leasemill.kind"] for event in written(tmp_path)] == ["in_thread"]


def test_an_app_is_instrumented_once() -> None:
    app = App("memory:")
    instrument(app)
    with pytest.raises(Invalid, match="instrumented already"):
        instrument(app)
    with pytest.raises(Invalid, match=r"takes the leasemill\.App"):
        instrument("app")  # type: ignore[arg-type]
