"""The supervisor beside processes that only play a worker's part on the control channel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasemill.worker.process_ends import EXIT_CRASH_LOOP, EXIT_REPLACE, RestartPace
from leasemill.worker.supervisor.child import Child
from leasemill.worker.supervisor.supervisor import Processes, Supervisor, WorkerSlot

CHILD = """
import json, os, socket, sys
options = dict(text[2:].split("=") for text in sys.argv[1:])
name = options["worker-id"]
lines = socket.socket(fileno=int(options["control"])).makefile("rw")
def send(**message):
    print(json.dumps(message), file=lines, flush=True)
def await_(what):
    while json.loads(lines.readline())["do"] != what:
        pass
def hello():
    send(**{"is": "hello", "worker": name, "instance": str(os.getpid())})
    await_("run")
    facts = {"version": "0", "store": "none", "queues": [], "kinds": [], "slots": 1}
    send(**{"is": "up", "facts": facts})
"""
QUICK = RestartPace(healthy_s=0.3, first_s=0.01, longest_s=0.02, most_deaths=3)


@pytest.fixture(autouse=True)
def hangups_are_noticed() -> Iterator[None]:
    """Also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def run(part: str, folder: Path, count: int = 2, *, drains: bool = False) -> int:
    """With processes that do this; the exit code."""
    command = [sys.executable, "-S", "-E", "-c", CHILD + part]
    environment = {**os.environ, "FOLDER": str(folder)}
    return Supervisor(Processes("mill", count, command, environment, 5.0, drains, QUICK)).run()


def test_a_crash_loop_of_every_process_ends_with_an_exit_code_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run("hello(); sys.exit(70)", tmp_path) == EXIT_CRASH_LOOP
    assert "every process has died 3 times in a row soon after its start" in caplog.text
    assert "worker mill.2 ended: exit status 70, seen by its supervisor" in caplog.text


def test_processes_that_are_killed_before_the_first_is_ready_are_a_crash_loop_too(tmp_path: Path) -> None:
    assert run("os.kill(os.getpid(), 9)", tmp_path) == EXIT_CRASH_LOOP


@pytest.mark.parametrize("status", [2, 4])
def test_a_wrong_setting_or_a_damaged_store_ends_all_gracefully(status: int, tmp_path: Path) -> None:
    part = f"""
hello()
if name == "mill.2":
    sys.exit({status})
await_("stop")
open(os.environ["FOLDER"] + "/stopped", "w").close()
"""
    assert run(part, tmp_path) == status
    assert (tmp_path / "stopped").exists(), "the other one was asked to stop"


def test_one_process_in_a_crash_loop_does_not_end_healthy_ones(tmp_path: Path) -> None:
    part = """
import time
hello()
log = open(os.environ["FOLDER"] + "/deaths", "a+")
if name == "mill.2":
    log.write("x")
    log.close()
    sys.exit(70 if os.path.getsize(log.name) <= 6 else 0)
while os.path.getsize(log.name) <= 6:
    time.sleep(0.01)
"""
    assert run(part, tmp_path, drains=True) == 0, "it went on until both had drained"
    assert (tmp_path / "deaths").stat().st_size == 7


def test_a_death_that_nobody_can_record_yet_is_waited_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = """
path = os.environ["FOLDER"] + "/died"
first = not os.path.exists(path)
open(path, "w").close()
hello()
sys.exit(70 if first else 0)
"""
    waits: list[float] = []
    wait_s = Supervisor._wait_s

    def noted(self: Supervisor) -> float:
        waits.append(wait_s(self))
        return waits[-1]

    monkeypatch.setattr(Supervisor, "_wait_s", noted)
    assert run(part, tmp_path, count=1, drains=True) == 0
    assert waits.count(0.0) <= 2, "when the next process is to be started; otherwise there is nothing to do"


def test_a_report_of_a_later_version_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = """
hello()
send(**{"is": "newer"})
"""
    assert run(part, tmp_path, count=1, drains=True) == 0
    assert "unknown report of worker mill.1: 'newer'" in caplog.text


def test_a_death_is_passed_to_a_sibling_until_it_is_confirmed(tmp_path: Path) -> None:
    part = """
hello()
if name == "mill.2" and not os.path.exists(os.environ["FOLDER"] + "/died"):
    open(os.environ["FOLDER"] + "/died", "w").write(str(os.getpid()))
    os.kill(os.getpid(), 9)
if name == "mill.1":
    for _ in range(2):
        message = json.loads(lines.readline())
        assert message["do"] == "death" and message["worker"] == "mill.2", message
        assert message["instance"] == open(os.environ["FOLDER"] + "/died").read()
        assert message["cause"] == "exit status 137 (SIGKILL), seen by its supervisor"
    send(**{"is": "recorded", "instance": message["instance"]})
"""
    assert run(part, tmp_path, drains=True) == 0


def test_a_death_that_no_sibling_can_record_is_passed_to_the_replacement_before_it_runs(tmp_path: Path) -> None:
    part = """
died = os.environ["FOLDER"] + "/died"
if os.path.exists(died):
    send(**{"is": "hello", "worker": name, "instance": "second"})
    first, second = json.loads(lines.readline()), json.loads(lines.readline())
    assert (first["do"], second["do"]) == ("death", "run")
    assert first["instance"] == open(died).read()
    sys.exit(0)
hello()
open(died, "w").write(str(os.getpid()))
os.kill(os.getpid(), 9)
"""
    assert run(part, tmp_path, 1, drains=True) == 0


def fails_once(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The system starts no process for the call of this number."""
    calls = 0

    class Failing(Child):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise BlockingIOError("Resource temporarily unavailable")
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("leasemill.worker.supervisor.supervisor.Child", Failing)


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_once(monkeypatch, 1)
    assert run("hello()", tmp_path, count=1, drains=True) == 0


def test_a_successor_that_cannot_be_started_takes_no_place_from_the_process_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = f"""
import time
hello()
log = open(os.environ["FOLDER"] + "/log", "a+")
print("begins", file=log, flush=True)
log.seek(0)
if len(log.readlines()) == 1:
    send(**{{"is": "retiring"}})
    time.sleep(0.5)
    print("ends", file=log, flush=True)
    sys.exit({EXIT_REPLACE})
"""
    fails_once(monkeypatch, 2)
    assert run(part, tmp_path, count=1, drains=True) == 0
    assert "a process of worker mill.1 could not be started" in caplog.text
    assert (tmp_path / "log").read_text().split() == ["begins", "ends", "begins"], "one at a time"


def test_a_restart_is_abandoned_where_no_successor_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = """
hello()
open(os.environ["FOLDER"] + "/" + name, "a").write("x")
os.kill(os.getppid(), 1)
await_("stop")
"""
    fails_once(monkeypatch, 2)
    abandoned = Supervisor._standby_ended

    def then_stop(self: Supervisor, slot: WorkerSlot) -> None:
        abandoned(self, slot)
        self._stop_all()

    monkeypatch.setattr(Supervisor, "_standby_ended", then_stop)
    assert run(part, tmp_path, count=1) == 0
    assert "restart abandoned: the new process of worker mill.1 did not become ready" in caplog.text
    assert (tmp_path / "mill.1").read_text() == "x"
