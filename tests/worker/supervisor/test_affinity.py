"""Each process on a core of its own, and the supervisor where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasemill.errors import Invalid
from leasemill.worker.supervisor.affinity import cores_of, kept_to
from leasemill.worker.supervisor.supervisor import Processes, Supervisor
from tests.worker.supervisor.test_supervisor import CHILD, QUICK

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let a program choose its cores")

ALLOWED = "import os, threading; threading.Thread(target=lambda: print(os.sched_getaffinity(0))).start()"


def own() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@linux_only
def test_what_is_started_meanwhile_stays_on_the_core_with_all_its_threads() -> None:
    before, core = own(), own()[-1]
    with kept_to(core):
        started = subprocess.Popen([sys.executable, "-S", "-c", ALLOWED], stdout=subprocess.PIPE, text=True)
    assert own() == before
    assert started.communicate()[0].strip() == str({core})


@linux_only
def test_each_process_has_the_core_of_its_place_and_so_has_its_successor(tmp_path: Path) -> None:
    part = """
hello()
log = open(os.environ["FOLDER"] + "/" + name, "a+")
print(*os.sched_getaffinity(0), file=log, flush=True)
log.seek(0)
sys.exit(70 if len(log.readlines()) == 1 else 0)
"""
    before = own()
    cores = [before[-1], before[0]]
    command = [sys.executable, "-S", "-E", "-c", CHILD + part]
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    assert Supervisor(Processes("mill", 2, command, environment, 5.0, True, QUICK, cores)).run() == 0
    assert own() == before
    for number, core in enumerate(cores, 1):
        assert (tmp_path / f"mill.{number}").read_text().split() == [str(core), str(core)]


@linux_only
def test_a_process_whose_core_was_taken_away_runs_on_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = """
hello()
print(*os.sched_getaffinity(0), file=open(os.environ["FOLDER"] + "/" + name, "w"))
"""
    taken_away = max(own()) + 1_000
    command = [sys.executable, "-S", "-E", "-c", CHILD + part]
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    assert Supervisor(Processes("mill", 1, command, environment, 5.0, True, QUICK, [taken_away])).run() == 0
    assert [int(core) for core in (tmp_path / "mill.1").read_text().split()] == own()
    assert f"core {taken_away} cannot be used any more" in caplog.text


@linux_only
def test_only_cores_that_the_program_may_use_are_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    assert cores_of(2) == [3, 5]
    with pytest.raises(Invalid, match="3 cores for 4 processes: start fewer, or leave it out"):
        cores_of(4)


def test_a_system_without_a_choice_of_cores_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Invalid, match="leave out --cpu-affinity"):
        cores_of(1)
