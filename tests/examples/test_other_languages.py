"""The workers that are not Python: they run jobs, keep leases, and give way when theirs is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread
from tests.lab.processes import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "other_languages"
LIMIT_S = 60.0


def program(*names: str) -> None:
    """Skip where one of these is missing."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture
def store(server: ServerThread) -> Iterator[MemoryStore]:
    with MemoryStore() as store, server.serving(store):
        yield store


class Running:
    """A worker's process; its log is in a file."""

    def __init__(self, folder: Path, url: str, *command: str, **environment: str) -> None:
        self._log = folder / "worker.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "LEASEMILL_URL": url, **environment},
                stderr=output,
                stdout=output,
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )

    def log(self) -> str:
        return self._log.read_text()

    def ended(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.process.kill()


def built_go(folder: Path) -> str:
    """The program of the worker in Go."""
    program("go")
    target = str(folder / "worker.built")
    subprocess.run(["go", "build", "-o", target, str(EXAMPLE / "worker.go")], check=True, timeout=3 * LIMIT_S)
    return target


class Start(Protocol):
    """Starts a worker that has the handlers `greet`, `nap` and `fail`, on the queue `work`."""

    def __call__(self, folder: Path, url: str, **environment: str) -> Running: ...


@pytest.fixture(scope="module", params=["javascript", "go"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    if request.param == "javascript":
        program("node")
        command = ["node", str(EXAMPLE / "worker.mjs")]
    else:
        command = [built_go(tmp_path_factory.mktemp("go"))]
    return lambda folder, url, **environment: Running(folder, url, *command, QUEUES="work", **environment)


def shell(folder: Path, url: str, *command: str, **environment: str) -> Running:
    program("bash", "curl", "jq")
    return Running(folder, url, str(EXAMPLE / "worker.sh"), "work", *command, **environment)


def jobs_of(store: Store) -> dict[str, tuple[JobState, object]]:
    return {
        job.spec.id: (job.state, None if job.result is None else json.loads(job.result)) for job in store.jobs().jobs
    }


def state_of(store: Store, job_id: str) -> JobState | None:
    job = store.job(job_id)
    return None if job is None else job.state


def spec(job_id: str, kind: str, payload: str, **policy: Any) -> JobSpec:
    return JobSpec(job_id, "work", kind, payload.encode(), policy=Policy(**policy))


def test_a_worker_runs_jobs_retries_and_keeps_a_lease(
    server: ServerThread, store: MemoryStore, tmp_path: Path, start: Start
) -> None:
    store.enqueue(
        [
            spec("hello", "greet", '{"name":"ann"}'),
            spec("long", "nap", '{"ms":3000}', lease_ttl_us=2_000_000),
            spec("wrong", "fail", "{}", max_retries=1, backoff_base_us=0),
            spec("unknown", "no_such_kind", "{}"),
        ]
    )
    worker = start(tmp_path, server.url, DRAIN="1", GREETINGS=str(tmp_path / "greetings"))
    ended = (JobState.SUCCEEDED, JobState.FAILED)
    wait_until(lambda: all(state_of(store, one) in ended for one in ("hello", "long", "wrong")), "the jobs", LIMIT_S)
    worker.process.terminate()
    assert worker.ended() == 0, worker.log()
    found = jobs_of(store)
    assert found["hello"] == (JobState.SUCCEEDED, {"greeting": "hello ann"})
    assert found["long"] == (JobState.SUCCEEDED, {"slept": 3000})
    assert found["wrong"][0] is JobState.FAILED
    assert found["unknown"][0] in {JobState.READY, JobState.LEASED}
    long, wrong = store.job("long"), store.job("wrong")
    assert long is not None
    assert long.attempt == 1  # its heartbeat kept the lease
    assert wrong is not None
    assert "as it was asked to" in str(wrong.executions[-1].error)
    fence, _, greeting = (tmp_path / "greetings").read_text().strip().partition(" ")
    assert (int(fence) > 0, greeting) == (True, "hello ann")


def test_a_worker_gives_way_when_its_lease_is_lost(
    server: ServerThread, store: MemoryStore, tmp_path: Path, start: Start
) -> None:
    store.enqueue([spec("long", "nap", '{"ms":60000}', lease_ttl_us=2_000_000)])
    worker = start(tmp_path, server.url)
    wait_until(lambda: state_of(store, "long") is JobState.LEASED, "the job to run", LIMIT_S)
    store.cancel(["long"], by="ann", reason="test")
    wait_until(lambda: "is another worker's now: cancelled" in worker.log(), "the worker to notice", LIMIT_S)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.log()
    assert state_of(store, "long") is JobState.CANCELLED


def test_shell_runs_jobs_retries_and_keeps_a_lease(server: ServerThread, store: MemoryStore, tmp_path: Path) -> None:
    program("jq")
    handler = tmp_path / "handler.sh"
    handler.write_text(
        '#!/usr/bin/env bash\nset -e\npayload=$(cat)\nsleep "$(jq -r \'.s // 0\' <<<"$payload")"\n'
        'if [ "$(jq -r .fails <<<"$payload")" = true ]; then echo "as it was asked to" >&2; exit 3; fi\n'
        'jq -c --arg fence "$LEASEMILL_FENCE" "{name, fence: \\$fence}" <<<"$payload"\n'
    )
    handler.chmod(0o755)
    store.enqueue(
        [
            spec("hello", "greet", '{"name":"ann"}'),
            spec("long", "nap", '{"name":"bob","s":4.5}', lease_ttl_us=3_000_000),
            spec("wrong", "fail", '{"fails":true}', max_retries=0),
        ]
    )
    worker = shell(tmp_path, server.url, str(handler), DRAIN="1")
    assert worker.ended() == 0, worker.log()
    found = jobs_of(store)
    assert found["hello"] == (JobState.SUCCEEDED, {"name": "ann", "fence": "1"})
    assert found["long"] == (JobState.SUCCEEDED, {"name": "bob", "fence": "2"})
    long, wrong = store.job("long"), store.job("wrong")
    assert long is not None
    assert long.attempt == 1
    assert wrong is not None
    assert wrong.state is JobState.FAILED
    assert str(wrong.executions[-1].error) == "as it was asked to\nexit 3"


def test_shell_gives_way_when_its_lease_is_lost(server: ServerThread, store: MemoryStore, tmp_path: Path) -> None:
    store.enqueue([spec("long", "nap", "{}", lease_ttl_us=3_000_000)])
    worker = shell(tmp_path, server.url, "sleep", "60", WAIT_S="1")
    wait_until(lambda: state_of(store, "long") is JobState.LEASED, "the job to run", LIMIT_S)
    store.cancel(["long"], by="ann", reason="test")
    wait_until(lambda: "is another worker's now: cancelled" in worker.log(), "the worker to notice", LIMIT_S)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.log()
