"""A process that has read nothing keeps rule I7 too: the manifest lists the queues that are used with acquire."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.errors import QueueRefused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import JobSpec, JobState
from leasemill.operator.explain import Situation, explain
from leasemill.operator.facts import gather
from leasemill.store.file.format import checksum
from leasemill.store.file.log import Log
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import disk_of, open_simulated, state_of
from tests.lab.faults import SimulatedCrash, SimulatedMachine

QUEUE = "payments"


def acquire(store: FileStore, offset: int, queue: str = QUEUE) -> c.AcquireOutcome:
    (outcome,) = store.acquire([c.AcquireRequest(queue, "ann", offset, "worker", f"token-{queue}-{offset}")])
    return outcome


def enqueue_new(store: FileStore, job_id: str, queue: str = QUEUE, lane: str | None = None) -> None:
    assert store.run(c.Enqueue([JobSpec(job_id, queue, "pay", lane=lane)], are_new=True)) == [c.Enqueued(job_id)]


def listed(machine: SimulatedMachine) -> list[str] | None:
    found: list[str] | None = json.loads(machine.files()["manifest"].partition(b"\n")[2])["acquire_queues"]
    return found


def without_list(machine: SimulatedMachine, *, reboots: bool) -> SimulatedMachine:
    """The folder as a version left it that did not list the queues."""
    twin = machine.copy(reboots=reboots)
    manifest = json.loads(machine.files()["manifest"].partition(b"\n")[2])
    del manifest["acquire_queues"]
    content = json.dumps(manifest).encode()
    twin.put("manifest", f"{checksum(content):08x}\n".encode() + content)
    return twin


@rule("I7", "W9")
def test_a_producer_that_has_read_nothing_sees_what_another_process_acquired_meanwhile(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    producer, owner = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
    enqueue_new(producer, "before", "mail")
    acquire(owner, 1)
    enqueue_new(producer, "mail", "mail")
    assert producer._replica.state is None
    with pytest.raises(QueueRefused, match="is used with acquire"):
        enqueue_new(producer, "stray", lane="ann")
    assert owner.job("stray") is None


@rule("W9")
def test_other_queues_of_a_folder_with_acquire_queues_are_still_appended_unread(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path) as owner:
        acquire(owner, 1)
    with open_simulated(machine, tmp_path) as producer:
        for number in range(3):
            enqueue_new(producer, f"mail-{number}", "mail")
        assert producer._replica.state is None


@rule("I7", "W9")
@pytest.mark.parametrize("loses_power", [False, True])
def test_the_list_is_right_wherever_an_acquire_is_cut_off(tmp_path: Path, loses_power: bool) -> None:
    for count in range(1, 200):
        machine = SimulatedMachine()
        owner, producer = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
        enqueue_new(producer, "before", "mail")
        machine.crash_at(count, disk_of(owner))
        try:
            acquire(owner, 1)
        except SimulatedCrash:
            is_cut_off = True
        else:
            is_cut_off = False
        machine.forget_faults()
        if loses_power:
            machine.lose_power(random.Random(count))
            producer = open_simulated(machine, tmp_path)
        try:
            enqueue_new(producer, "new")
        except QueueRefused:
            pass
        else:
            assert is_cut_off
        assert violations(state_of(open_simulated(machine, tmp_path))) == []
        if not is_cut_off:
            assert count > 5
            return
    raise AssertionError("the acquire never came to its end")


@rule("I7", "W9")
@pytest.mark.parametrize("reboots", [False, True])
def test_a_folder_without_the_list_is_read_before_anything_is_enqueued(tmp_path: Path, reboots: bool) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path) as store:
        acquire(store, 1)
        store.enqueue([JobSpec("before", "mail", "send")])
    machine = without_list(machine, reboots=reboots)
    with open_simulated(machine, tmp_path) as producer, pytest.raises(QueueRefused):
        enqueue_new(producer, "stray")
    assert listed(machine) == [QUEUE]
    with open_simulated(machine, tmp_path) as producer:
        enqueue_new(producer, "mail", "mail")
        assert producer._replica.state is None


@rule("W7", "W9")
def test_without_room_for_the_list_nothing_is_appended_unread_and_what_is_there_goes_on(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path) as store:
        acquire(store, 1)
    machine = without_list(machine, reboots=False)
    machine.fill_at(1)
    with open_simulated(machine, tmp_path) as store:
        assert store.ack([c.AckReport(f"{QUEUE}/ann/1", f"token-{QUEUE}-1")]) == [c.Acked(f"{QUEUE}/ann/1")]
        with pytest.raises(Unavailable, match="no space left"):
            acquire(store, 1, "another")
    machine.make_room()
    with open_simulated(machine, tmp_path) as store, pytest.raises(QueueRefused):
        enqueue_new(store, "stray")


def with_a_stray(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose domain is blocked by a job that came by enqueue, as an earlier version accepted it."""
    clock = ManualClock()
    with FileStore(folder, clock=clock) as store:
        acquire(store, 1)
    with monkeypatch.context() as patched, FileStore(folder, clock=clock) as producer:
        patched.setattr(Log, "may_be_acquired", lambda _log, _queues: False)
        enqueue_new(producer, "stray", lane="ann")


@rule("I7")
def test_a_log_that_has_a_job_of_the_other_use_is_read_and_can_be_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_stray(tmp_path, monkeypatch)
    clock = ManualClock()
    with FileStore(tmp_path, clock=clock) as store:
        store.ack([c.AckReport(f"{QUEUE}/ann/1", f"token-{QUEUE}-1")])
        assert isinstance(acquire(store, 2), c.OutOfOrder)
        assert violations(state_of(store)) == [
            "job stray came by enqueue into queue payments, which is used with acquire"
        ]
        facts = gather(store, "stray", clock.now())
        assert facts is not None
        told = explain(facts)
        assert told.situation is Situation.UNCLAIMABLE
        assert told.advice[0] == "leasemill jobs cancel stray --reason …"
        store.cancel(["stray"], by="ada", reason="it can never be claimed")
        assert isinstance(acquire(store, 2), c.Acquired)
        stray = store.job("stray")
        assert stray is not None
        assert stray.state is not JobState.READY


@rule("I7")
def test_verify_reports_a_job_of_the_other_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_stray(tmp_path, monkeypatch)
    ended = CliRunner().invoke(main, ["wal", "verify", str(tmp_path)])
    assert ended.exit_code == 1
    assert "BROKEN: job stray came by enqueue into queue payments" in ended.output
