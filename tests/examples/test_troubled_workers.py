"""Workers that are not Python, and a server that refuses, is busy or does not answer."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from tests.examples.test_other_languages import EXAMPLE, LIMIT_S, Running, built_go, program
from tests.lab.scripted import LocalServer, read_body, says

Reply: TypeAlias = tuple[int, str | None, Any]
"""The status, when to come back, and the content."""
KEY = "lm_s3cret"
LOST: Reply = (409, None, {"reason": "lost", "answer": [{"outcome": "lost", "reason": "superseded"}]})
OUTCOME: Reply = (200, None, [{"outcome": "acked"}])


class Troubled(LocalServer):
    """Grants these jobs, one after the other; what it replies to a report is `replies[verb]`, called with how many
    there were before; None: nothing, until the test is over. `asked`: verb, body and time of each request."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs: Iterator[dict[str, Any]] = iter(jobs)
        self.granted: dict[str, float] = {}
        """When each job was granted the last time."""
        self.replies: dict[str, Callable[[int], Reply | None]] = {}
        self.asked: list[tuple[str, Any, float]] = []
        self.seen: set[str] = set()
        """Command lines of processes while they asked."""
        self._is_over = threading.Event()

        super().__init__(self._answer)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        found = self.reply(handler.path.removeprefix("/v1/"), json.loads(read_body(handler)))
        if found is None:
            self._is_over.wait(2 * LIMIT_S)
            handler.close_connection = True
            return
        status, retry_after, content = found
        says(status, json.dumps(content).encode(), retry_after=retry_after)(handler)

    def reply(self, verb: str, body: Any) -> Reply | None:
        before = len(self.of(verb))
        self.asked.append((verb, body, time.monotonic()))
        self.seen.update(_command_lines())
        if verb == "claim":
            job = next(self.jobs, None)
            if job is not None:
                self.granted[job["job"]["id"]] = time.monotonic()
            return 200, None, [] if job is None else [job]
        reply = self.replies.get(verb)
        return OUTCOME if reply is None else reply(before)

    def of(self, verb: str) -> list[tuple[str, Any, float]]:
        return [one for one in self.asked if one[0] == verb]

    def jobs_of(self, verb: str) -> list[str]:
        return [body["reports"][0]["job_id"] for _, body, _ in self.of(verb)]

    def close(self) -> None:
        self._is_over.set()
        super().close()


def _command_lines() -> list[str]:
    return [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]


def job(job_id: str, kind: str, payload: Any, ttl_s: float = 60) -> dict[str, Any]:
    terms = {"lease_ttl_us": int(ttl_s * 1_000_000)}
    described = {"id": job_id, "kind": kind, "payload": payload}
    return {"token": f"token of {job_id}", "attempt": 1, "fence": 1, "job": described, "terms": terms}


GREET = ("greet", {"name": "ann"})
NAP = ("nap", {"ms": 60_000})


def until_its_heartbeat(server: Troubled) -> Iterator[dict[str, Any]]:
    """Job a, again with a longer lease as long as no worker got to its first heartbeat in time, as may be on a busy
    machine; then job b."""
    for ttl_s in (3, 10, 30):
        yield job("a", *NAP, ttl_s=ttl_s)
        if server.of("extend"):
            break
    yield job("b", *GREET)


HANDLER = """#!/usr/bin/env bash
payload=$(cat)
ms=$(jq -r '.ms // empty' <<<"$payload")
[ -n "$ms" ] && exec sleep "$((ms / 1000))"
jq -r .name <<<"$payload" >>"$GREETINGS"
echo null
"""


@pytest.fixture(scope="module")
def go_worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_go(tmp_path_factory.mktemp("go"))


@pytest.fixture(params=["shell", "javascript", "go"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Troubled], Running]]:
    """Starts a worker with one slot that writes down whom it greets."""
    servers: list[Troubled] = []

    def started(server: Troubled) -> Running:
        servers.append(server)
        environment = {"DRAIN": "1", "SLOTS": "1", "LEASEMILL_TOKEN": KEY, "GREETINGS": str(tmp_path / "greetings")}
        if request.param == "javascript":
            program("node")
            return Running(tmp_path, server.url, "node", str(EXAMPLE / "worker.mjs"), **environment)
        if request.param == "go":
            command: str = request.getfixturevalue("go_worker")
            return Running(tmp_path, server.url, command, **environment)
        program("bash", "curl", "jq")
        handler = tmp_path / "handler.sh"
        handler.write_text(HANDLER)
        handler.chmod(0o755)
        return Running(tmp_path, server.url, str(EXAMPLE / "worker.sh"), "default", str(handler), **environment)

    yield started
    for server in servers:
        server.close()


Start: TypeAlias = Callable[[Troubled], Running]


def test_a_job_whose_start_is_refused_is_not_run(start: Start, tmp_path: Path) -> None:
    server = Troubled(job("a", *GREET), job("b", *GREET))
    server.replies["start"] = lambda before: OUTCOME if before else LOST
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    assert "job a is another worker's now: superseded" in worker.log()
    assert (server.jobs_of("ack"), server.jobs_of("nack")) == (["b"], [])
    assert len((tmp_path / "greetings").read_text().splitlines()) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(start: Start, status: int) -> None:
    server = Troubled(job("a", *GREET))
    server.replies["ack"] = lambda before: OUTCOME if before else (status, "2", {"detail": "busy"})
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    first, second = (at for _, _, at in server.of("ack"))
    assert second - first >= 1.9


def test_a_report_that_is_refused_ends_neither_the_worker_nor_the_next_job(start: Start) -> None:
    server = Troubled(job("a", *GREET), job("b", *GREET))
    server.replies["ack"] = lambda before: OUTCOME if before else (422, None, {"detail": "too large"})
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    assert "too large" in worker.log()
    assert server.jobs_of("ack") == ["a", "b"]


def test_a_heartbeat_without_an_answer_stops_the_handler_and_nothing_is_reported(start: Start) -> None:
    server = Troubled()
    server.jobs = until_its_heartbeat(server)
    server.replies["extend"] = lambda _: None
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    assert "job a got no answer in time" in worker.log()
    assert (server.jobs_of("ack"), server.jobs_of("nack")) == (["b"], [])
    assert server.granted["b"] - server.granted["a"] < LIMIT_S / 2  # not when the handler would have ended


def test_a_heartbeat_that_is_refused_for_another_reason_stops_the_handler_in_time(start: Start) -> None:
    server = Troubled()
    server.jobs = until_its_heartbeat(server)
    server.replies["extend"] = lambda _: (401, None, {"detail": "the key was revoked"})
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    assert server.of("extend")
    assert (server.jobs_of("ack"), server.jobs_of("nack")) == (["b"], [])


SLOW_JQ = """#!/usr/bin/env bash
[[ " $* " == *" .fence "* ]] && sleep 2
exec {jq} "$@"
"""


def test_a_command_that_is_stopped_while_it_is_prepared_leaves_a_shell_worker_its_files(tmp_path: Path) -> None:
    """The environment of the command takes longer than its lease is held."""
    program("bash", "curl", "jq")
    for name, text in {"handler.sh": HANDLER, "jq": SLOW_JQ.format(jq=shutil.which("jq"))}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    server = Troubled()
    server.jobs = until_its_heartbeat(server)
    server.replies["extend"] = lambda _: LOST
    environment = {"DRAIN": "1", "GREETINGS": str(tmp_path / "greetings"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = (str(EXAMPLE / "worker.sh"), "default", str(tmp_path / "handler.sh"))
    try:
        worker = Running(tmp_path, server.url, *command, **environment)
        assert worker.ended() == 0, worker.log()
    finally:
        server.close()
    assert "job a is another worker's now: superseded" in worker.log()
    assert (server.jobs_of("ack"), server.jobs_of("nack")) == (["b"], [])


def test_the_key_is_in_no_command_line(start: Start) -> None:
    server = Troubled(job("a", *GREET))
    worker = start(server)
    assert worker.ended() == 0, worker.log()
    assert server.jobs_of("ack") == ["a"]
    assert any("worker." in line for line in server.seen)
    assert not [line for line in server.seen if KEY in line]
