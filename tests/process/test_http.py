"""Servers and workers in processes of their own: restarts, signals, crashes, and every command by URL."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.demo.server import ServerProcess
from leasemill.errors import Unavailable
from leasemill.kernel.commands import Duplicate, Enqueued, EnqueueOutcome, JobFilter
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.factory import open_store
from tests.lab.processes import wait_until
from tests.lab.zombie import Variant, play_all, staged
from tests.process.http_lab import HttpLab, RestartLab
from tests.process.test_demo import run_demo

LIMIT_S = 60.0
CLAIM = {"worker": "w", "queues": ["mail"], "limit": 1, "wait_s": 60}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"file:{tmp_path / 'jobs'}", tmp_path / "server.log") as server:
        yield server


def polls(server: ServerProcess) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("leasemill_server_open_polls "))


def leasemill(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(main, list(arguments))
    return ran.exit_code, ran.output


def test_the_demo_holds_behind_a_server() -> None:
    code, output, errors = run_demo("--store", "http", "--jobs", "200", "--json")
    assert code == 0, output + errors
    result: dict[str, Any] = json.loads(output)
    assert result["holds"]
    assert (result["effects_once"], result["effects_doubled"], result["effects_missing"]) == (200, 0, 0)


def test_the_demo_runs_on_a_server_that_is_there_and_refuses_to_mix_its_jobs_with_others(served: ServerProcess) -> None:
    with open_store(served.url) as store:
        store.enqueue([JobSpec("mine", "mail", "send")])
    code, output, errors = run_demo("--url", served.url, "--jobs", "200", "--json")
    assert code == 0, output + errors
    result: dict[str, Any] = json.loads(output)
    assert result["holds"]
    assert (result["jobs"], result["effects_once"]) == (200, 200)
    code, _, errors = run_demo("--url", served.url)
    assert code == 1
    assert f"{served.url} has 200 jobs in its queue deposits" in errors
    assert "leasemill jobs purge --queue deposits" in errors
    with open_store(served.url) as store:
        (mine,) = store.jobs(JobFilter(queue="mail")).jobs
    assert mine.state is JobState.READY


def test_the_demo_takes_one_store() -> None:
    code, _, errors = run_demo("--url", "http://127.0.0.1:9", "--store", "file")
    assert (code, "use only one of them" in errors) == (2, True)
    code, _, errors = run_demo("--url", "memory:")
    assert (code, "lives inside one process" in errors) == (1, True)


def test_a_server_that_is_killed_under_callers_who_share_requests_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    is_over = threading.Event()
    with ServerProcess(f"file:{tmp_path / 'jobs'}", tmp_path / "server.log") as server, open_store(server.url) as store:
        acknowledged, errors = list[str](), list[Unavailable]()

        def call(number: int) -> None:
            for count in range(1_000_000):
                if is_over.is_set():
                    return
                job = JobSpec(f"{number}-{count}", "mail", "send", b"%d" % count)
                while not (outcomes := enqueued(job)):
                    pass  # unknown whether it happened: the same again
                assert outcomes[0] in (Enqueued(job.id), Duplicate(job.id))
                acknowledged.append(job.id)

        def enqueued(job: JobSpec) -> list[EnqueueOutcome]:
            try:
                return store.enqueue([job])
            except Unavailable as error:
                errors.append(error)
                return []

        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(call, number) for number in range(8)]
            try:
                for kill in range(1, 5):
                    wait_until(lambda kill=kill: len(acknowledged) > 200 * kill, "jobs to be enqueued")  # type: ignore[misc]
                    server.kill()
                    server.start()
            finally:
                is_over.set()
            for one in calls:
                one.result(LIMIT_S)
        assert len(set(map(id, errors))) == len(errors)
        assert len(set(acknowledged)) == len(acknowledged)
        assert store.totals().counts[JobState.READY] == len(acknowledged)


def test_a_stopped_worker_behind_a_server_changes_nothing_any_more(served: ServerProcess) -> None:
    with staged(served.url) as stage:
        runs = play_all(stage, [Variant.FINISHED, Variant.FAILURE], runs=1, parallel=2)
    assert [run for run in runs if not run.is_right] == []
    assert [run.effects for run in runs] == [1, 1]


def test_nothing_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    outcome = HttpLab(tmp_path, times=3, workers=2, seed=7).run()
    assert outcome.wrong == ()
    assert outcome.jobs > 0


def test_a_restart_of_the_server_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    outcome = RestartLab(tmp_path, times=2, workers=3, seed=7).run()
    assert outcome.wrong == ()
    assert outcome.jobs > 0


def test_a_server_that_is_terminated_answers_who_waits_and_exits(served: ServerProcess) -> None:
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(httpx.post, f"{served.url}/v1/claim", json=CLAIM, timeout=100)
        wait_until(lambda: polls(served) == 1, "the claim to wait")
        assert served.terminate() == 0
        answered = waiting.result(30)
    assert (answered.status_code, answered.json()) == (200, [])
    assert "stopped" in served.log()


def test_a_second_signal_ends_the_server_at_once(served: ServerProcess) -> None:
    """The first cannot: a request never ends, for its body does not come."""
    with httpx.Client(base_url=served.url, timeout=100) as client, ThreadPoolExecutor(1) as executor:
        never = threading.Event()

        def body() -> Iterator[bytes]:
            yield b'{"jobs"'
            never.wait(60)

        headers = {"content-type": "application/json"}
        stuck = executor.submit(client.post, "/v1/enqueue", content=body(), headers=headers)
        wait_until(lambda: client.get("/healthz").status_code == 200, "the server to answer")
        served._process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _listens(served), "the server to stop listening")
        assert served._process.poll() is None
        assert served.terminate() == 0
        never.set()
        with pytest.raises(httpx.HTTPError):
            stuck.result(30).raise_for_status()


def _listens(server: ServerProcess) -> bool:
    try:
        httpx.get(f"{server.url}/healthz")
    except httpx.TransportError:
        return False
    return True


def test_a_producer_and_a_watch_outlive_a_restart(served: ServerProcess) -> None:
    with open_store(served.url) as store:
        store.enqueue([JobSpec("before", "mail", "send")])
        watch = store.watch(["other"])
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(watch.wait, 60)
            wait_until(lambda: polls(served) == 1, "the watch to wait")
            assert served.terminate() == 0
            served.start()
            store.enqueue([JobSpec("after", "other", "send")])
            assert waiting.result(60) is True
        assert [job.spec.id for job in store.jobs().jobs] == ["before", "after"]


def test_every_command_of_an_operator_works_behind_a_server(served: ServerProcess) -> None:
    url = ("--url", served.url)
    with open_store(served.url) as store:
        store.enqueue([JobSpec("letter", "mail", "send")])
    for arguments, words in {
        ("jobs", "list"): "letter",
        ("jobs", "show", "letter"): "READY",
        ("jobs", "explain", "letter"): "mail",
        ("queues", "list"): "mail",
        ("stats",): "mail",
        ("workers",): "",
        ("queues", "pause", "mail", "--reason", "test"): "mail",
        ("actions",): "pause",
        ("jobs", "cancel", "letter", "--reason", "test"): "1",
    }.items():
        code, output = leasemill(*arguments, *url)
        assert code == 0, (arguments, output)
        assert words in output


def test_a_server_that_is_not_there_is_named_without_its_token() -> None:
    code, output = leasemill("stats", "--url", "http://s3cret@127.0.0.1:9")
    assert code == 3
    assert "127.0.0.1:9" in output
    assert "s3cret" not in output
