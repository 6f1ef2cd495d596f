"""Syncs that processes share, at the moments when sharing could acknowledge what is not on disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.wal.store import FileStore
from leasemill.store.wal.syncs import SharedSyncs, Turn
from leasemill.testing.rules import rule
from tests.crash.lab import disk_of, falsely_covered, log_of, open_simulated
from tests.lab.faults import Operation, SimulatedCrash, SimulatedDisk, SimulatedMachine, Sync


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


def opened(machine: SimulatedMachine, folder: Path, count: int) -> list[FileStore]:
    """Stores of so many processes, each with the log read and its own expiries recorded."""
    stores = [open_simulated(machine, folder) for _ in range(count)]
    for store in stores:
        store.totals()
    return stores


class DiesAtItsSync:
    """The process dies when it would sync what it appended."""

    def __init__(self, machine: SimulatedMachine, store: FileStore) -> None:
        self._machine = machine
        self._disk = disk_of(store)

    def __call__(self, disk: SimulatedDisk, operation: Operation, _name: str) -> None:
        if disk is self._disk and operation is Operation.SYNC and not self._machine.is_locked:
            self._machine.kill(disk)
            raise SimulatedCrash


def append_and_die(machine: SimulatedMachine, store: FileStore, jobs: list[JobSpec]) -> None:
    machine.before = DiesAtItsSync(machine, store)
    with pytest.raises(SimulatedCrash):
        store.enqueue(jobs)
    machine.before = None


@rule("W1")
def test_what_another_process_has_synced_is_not_synced_again(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    first, second = opened(machine, tmp_path, 2)
    first.enqueue([job("a")])
    syncs = machine.operations[Operation.SYNC]
    assert second.job("a") is not None
    assert machine.operations[Operation.SYNC] == syncs


@rule("W1")
def test_a_reading_of_what_a_killed_process_did_not_sync_waits_for_a_sync(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    first, second = opened(machine, tmp_path, 2)
    second.enqueue([job("a")])
    append_and_die(machine, first, [job("b")])
    syncs = machine.operations[Operation.SYNC]
    assert second.job("b") is not None
    assert machine.operations[Operation.SYNC] == syncs + 1
    machine.lose_power(random.Random(1))
    assert open_simulated(machine, tmp_path).job("b") is not None


@rule("W1")
def test_a_sync_covers_what_others_appended_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine()
    first, second, third = opened(machine, tmp_path, 3)
    wait = SharedSyncs.await_turn

    def others_append(syncs: SharedSyncs, *arguments: object) -> Turn:
        monkeypatch.setattr(SharedSyncs, "await_turn", wait)
        append_and_die(machine, second, [job("b")])
        return wait(syncs, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedSyncs, "await_turn", others_append)
    first.enqueue([job("a")])
    syncs = machine.operations[Operation.SYNC]
    assert third.job("b") is not None
    assert machine.operations[Operation.SYNC] == syncs
    assert falsely_covered(machine) is None


@rule("W1", "W6")
def test_a_sync_of_a_segment_does_not_cover_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimulatedMachine()
    first, second, third = opened(machine, tmp_path, 3)
    wait = SharedSyncs.await_turn

    def others_rotate(syncs: SharedSyncs, *arguments: object) -> Turn:
        monkeypatch.setattr(SharedSyncs, "await_turn", wait)
        append_and_die(machine, second, [job(f"b-{number}") for number in range(300)])
        return wait(syncs, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedSyncs, "await_turn", others_rotate)
    segment = log_of(first).segment
    first.enqueue([job("a")])
    assert log_of(first).segment == segment
    assert log_of(first).read_manifest().last != segment
    assert falsely_covered(machine) is None
    assert third.job("b-299") is not None
    machine.lose_power(random.Random(1))
    assert open_simulated(machine, tmp_path).job("b-299") is not None


@rule("W1", "W5")
def test_a_sync_that_ends_after_a_recovery_covers_nothing_of_the_new_generation(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    writer, failing, third, fourth = opened(machine, tmp_path, 4)

    def fail_another_sync(disk: SimulatedDisk, operation: Operation, _name: str) -> None:
        if disk is disk_of(writer) and operation is Operation.SYNC:
            machine.before = None
            machine.fail_sync_at(1, disk_of(failing), Sync.FORGETS)
            with pytest.raises(Unavailable, match="failed to sync"):
                failing.totals()
            machine.after = recover

    def recover(disk: SimulatedDisk, _operation: Operation, _name: str) -> None:
        if disk is disk_of(writer):
            machine.after = None
            third.totals()
            append_and_die(machine, third, [job("t")])

    machine.before = fail_another_sync
    with pytest.raises(Unavailable, match="repeat the call"):
        writer.enqueue([job(f"lost-{number}") for number in range(10)])
    assert falsely_covered(machine) is None
    assert fourth.job("t") is not None
    machine.lose_power(random.Random(1))
    assert open_simulated(machine, tmp_path).job("t") is not None


@rule("W1")
def test_a_folder_put_back_after_a_boot_does_not_count_as_synced_as_far_as_it_once_was(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    (store,) = opened(machine, tmp_path, 1)
    store.enqueue([job("a")])
    backup = machine.copy()
    for number in range(10):
        store.enqueue([job(f"later-{number}")])
    backup._control[:] = machine._control
    (put_back,) = opened(backup, tmp_path, 1)
    assert put_back.enqueue([job("b")]) == [c.Enqueued("b")]
    assert falsely_covered(backup) is None
    backup.lose_power(random.Random(1))
    assert open_simulated(backup, tmp_path).job("b") is not None


@rule("W11")
def test_a_process_stopped_in_its_sync_is_waited_for_once(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    stopped, other = opened(machine, tmp_path, 2)
    file = log_of(stopped).file
    assert file is not None
    assert file.try_lock()
    log_of(other).syncs._longest_wait_s = 0.05
    turns: list[Turn] = []
    file, generation = log_of(other).file, log_of(other).manifest.generation
    assert file is not None
    for number in range(2):
        turns.append(log_of(other).syncs.await_turn(file, generation, 10**6 + number))
        log_of(other).syncs._longest_wait_s = 10**6  # to wait again would take for ever
    assert turns == [Turn.ALONE, Turn.ALONE]
    assert other.enqueue([job("a")]) == [c.Enqueued("a")]
    machine.kill(disk_of(stopped))
    assert other.enqueue([job("b")]) == [c.Enqueued("b")]
    assert falsely_covered(machine) is None
