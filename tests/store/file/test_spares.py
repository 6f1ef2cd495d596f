"""Spare segments that are not finished: those of dead processes are removed, those that are being made are left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leasemill.kernel.model import JobSpec
from leasemill.testing.rules import rule
from tests.crash.lab import log_of, open_simulated, snapshot
from tests.lab.faults import Operation, SimulatedDisk, SimulatedMachine


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def prepare_spare(machine: SimulatedMachine, folder: Path) -> None:
    with open_simulated(machine, folder) as store:
        log_of(store).space.prepare_spare()


def take_snapshot(machine: SimulatedMachine, folder: Path) -> None:
    snapshot(machine, folder)


@rule("W7")
@pytest.mark.parametrize("at_work", [prepare_spare, take_snapshot])
def test_the_unfinished_spare_of_a_dead_process_is_removed(
    tmp_path: Path, at_work: Callable[[SimulatedMachine, Path], None]
) -> None:
    machine = SimulatedMachine()
    open_simulated(machine, tmp_path).close()
    left, in_work = f"spare-{dead_pid()}-1.new", f"spare-{os.getppid()}-1.new"
    machine.put(left, bytes(4096))
    machine.put(in_work, bytes(4096))
    at_work(machine, tmp_path)
    assert left not in machine.files()
    assert in_work in machine.files()


@rule("W7")
def test_a_spare_that_another_process_removes_while_it_is_made_is_done_without(tmp_path: Path) -> None:
    """A process of another container has ids of its own, and takes this one for dead."""
    machine = SimulatedMachine()
    store, other = open_simulated(machine, tmp_path), machine.process()

    def remove(disk: SimulatedDisk, operation: Operation, name: str) -> None:
        if disk is not other and operation is Operation.RENAME and name.endswith(" to spare"):
            other.remove(name.removesuffix(" to spare"))

    machine.before = remove
    log_of(store).space.prepare_spare()
    machine.before = None
    assert "spare" not in machine.files()
    store.enqueue([JobSpec(f"j-{number}", "q", "k") for number in range(100)])
    assert store.totals().seq == 100
