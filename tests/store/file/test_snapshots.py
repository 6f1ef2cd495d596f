"""Snapshots under live readers: the same state as all events, files that go under a reader's feet, short openings."""

from __future__ import annotations

import fcntl
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leasemill.errors import Broken
from leasemill.kernel import commands as c
from leasemill.kernel.image import Image, digest, image
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import JobSpec, JobState, Order
from leasemill.kernel.state import State
from leasemill.store.file import batch, maintenance, replica
from leasemill.store.file.build import build
from leasemill.store.file.control import FULL
from leasemill.store.file.disk import Disk
from leasemill.store.file.format import Frame
from leasemill.store.file.manifest import Snapshot
from leasemill.store.file.options import FileOptions
from leasemill.store.file.recovery import BUILDER_LOCK
from leasemill.store.file.snapshot import read_snapshot
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.damage import write_walk
from tests.crash.hammer import every_event, replayed
from tests.crash.lab import digest_of, log_of, open_simulated, snapshot, state_of
from tests.crash.walk import Walk
from tests.lab.faults import SimulatedMachine

SMALL = FileOptions(segment_bytes=2048, does_maintenance=False)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@rule("W8")
@pytest.mark.parametrize("seed", range(4))
def test_snapshot_and_tail_give_the_state_of_all_events(tmp_path: Path, seed: int) -> None:
    machine, clock, source = SimulatedMachine(), ManualClock(), random.Random(seed)
    walk = Walk(source)
    with open_simulated(machine, tmp_path, clock, segment_bytes=2048) as store:
        for _ in range(5):
            write_walk(store, clock, 80, walk, source)
            assert snapshot(machine, tmp_path, segment_bytes=2048) is not None
            with open_simulated(machine, tmp_path, clock, segment_bytes=2048) as reopened:
                assert digest_of(reopened) == digest_of(store)
                assert violations(state_of(reopened)) == []


@rule("W8", "O12")
def test_a_snapshot_has_the_orders_to_workers_and_one_without_any_is_as_before(tmp_path: Path) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    with open_simulated(machine, tmp_path, clock, segment_bytes=2048) as store:
        write_walk(store, clock, 80, Walk(random.Random(1)), random.Random(1))
        assert type(image(state_of(store))) is Image
        for instance, order in (("first", Order.QUIET), ("second", Order.QUIET), ("first", Order.STOP)):
            store.run(c.OrderWorker("worker", instance, order, "ada", "why"))
        write_walk(store, clock, 80, Walk(random.Random(2)), random.Random(2))
        assert snapshot(machine, tmp_path, segment_bytes=2048) is not None
        with open_simulated(machine, tmp_path, clock, segment_bytes=2048) as reopened:
            assert digest_of(reopened) == digest_of(store)
            orders = state_of(reopened).worker_commands
            assert [(one.instance, one.order) for one in orders.values()] == [
                ("second", Order.QUIET),
                ("first", Order.STOP),
            ]


@rule("W8")
def test_a_reader_whose_segment_is_gone_begins_again_from_the_snapshot(tmp_path: Path) -> None:
    machine, clock, source = SimulatedMachine(), ManualClock(), random.Random(1)
    writer, reader = (open_simulated(machine, tmp_path, clock, segment_bytes=2048) for _ in range(2))
    writer.enqueue([job("first")])
    assert reader.job("first") is not None
    write_walk(writer, clock, 200, Walk(source), source)
    snapshot(machine, tmp_path, segment_bytes=2048)
    assert "segment-0000000000000000-1" not in machine.files()
    assert digest_of(reader) == digest_of(writer)
    assert reader.enqueue([job("another")]) == [c.Enqueued("another")]
    assert writer.enqueue([job("another")]) == [c.Duplicate("another")]


@rule("W8")
def test_a_snapshot_may_be_replaced_while_it_is_about_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, clock, source = SimulatedMachine(), ManualClock(), random.Random(1)
    walk = Walk(source)
    writer = open_simulated(machine, tmp_path, clock, segment_bytes=2048)
    write_walk(writer, clock, 100, walk, source)
    snapshot(machine, tmp_path, segment_bytes=2048)

    def read_late(disk: Disk, wanted: Snapshot) -> tuple[State, int]:
        monkeypatch.setattr(replica, "read_snapshot", read_snapshot)
        write_walk(writer, clock, 100, walk, source)
        snapshot(machine, tmp_path, segment_bytes=2048)
        return read_snapshot(disk, wanted)

    monkeypatch.setattr(replica, "read_snapshot", read_late)
    assert digest_of(open_simulated(machine, tmp_path, clock, segment_bytes=2048)) == digest_of(writer)


@rule("W8")
def test_only_one_process_builds_at_a_time_and_only_when_there_is_something_to_cover(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    with FileStore(folder, options=SMALL) as store:
        assert build(folder, keep_segments=False) is None
        store.enqueue([job(f"j-{number}") for number in range(10)])
        store.enqueue([job(f"k-{number}") for number in range(100)])
        taken = build(folder, keep_segments=False)
        assert taken is not None
        assert build(folder, keep_segments=False) is None
        assert store.totals().seq == 110


@rule("W8")
def test_a_command_waits_for_a_builder_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("j")])
    with (folder / BUILDER_LOCK).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert build(folder, keep_segments=False) is None
        monkeypatch.setattr(time, "sleep", lambda _seconds: guard.close())  # it ends while the command waits
        assert build(folder, keep_segments=False, seal_first=True) is not None


@rule("W3", "W8")
def test_a_builder_refuses_a_damaged_log_and_changes_nothing(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path, segment_bytes=512) as store:
        for number in range(20):
            store.enqueue([job(f"j-{number}")])
    name = sorted(name for name in machine.files() if name.startswith("segment-"))[1]
    content = bytearray(machine.files()[name])
    content[100] ^= 1
    machine.put(name, bytes(content))
    before = machine.files()
    with pytest.raises(Broken, match="damaged"):
        snapshot(machine, tmp_path, segment_bytes=512)
    assert machine.files() == before


@rule("W8")
def test_a_builder_works_while_two_processes_do(tmp_path: Path) -> None:
    """The builder in a process of its own, as a store starts it; afterwards all events are still to be had."""
    folder = tmp_path / "jobs"
    options = FileOptions(segment_bytes=4096, does_maintenance=False, keep_segments=True)
    stores = [FileStore(folder, options=options) for _ in range(2)]
    ends = threading.Event()

    def work(store: FileStore, name: str) -> None:
        number = 0
        while not ends.is_set():
            number += 1
            store.enqueue([job(f"{name}-{number}")])
            for lease in store.claim(name, ["q"], 2):
                store.ack([c.AckReport(lease.job.id, lease.token)])

    threads = [threading.Thread(target=work, args=(store, f"w{index}")) for index, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            command = [sys.executable, "-m", "leasemill.store.file.build", str(folder), "--keep-segments"]
            subprocess.run(command, check=True, timeout=60)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert len(list(folder.glob("snapshot-*"))) == 2, "the snapshot, and the builder's lock"
    assert len(list(folder.glob("archive/segment-*"))) >= 1
    everything = digest(replayed(every_event(folder)))
    assert [digest_of(store) for store in stores] == [everything, everything]
    for store in stores:
        store.close()
    with FileStore(folder, options=options) as reopened:
        assert digest_of(reopened) == everything


def fill(store: FileStore, count: int) -> None:
    for number in range(count):
        store.enqueue([job(f"{store.totals().seq}-{number}")])


def build_ended(store: FileStore) -> bool:
    return store._runner.maintenance._builder is not None and store._runner.maintenance._builder.poll() == 0


def wait_until(came: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not came():
        assert time.monotonic() < until
        time.sleep(0.01)


@rule("W8")
def test_a_store_starts_a_builder_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    options = FileOptions(segment_bytes=2048, snapshot_bytes=4096)
    with FileStore(folder, options=options) as store:
        for number in range(150):
            store.enqueue([job(f"j-{number}")])
        assert store._runner.maintenance._builder is not None
        assert store._runner.maintenance._builder.wait(30) == 0
        assert len(list(folder.glob("snapshot-0*"))) == 1
        assert store.totals().seq == 150


@rule("W7", "W8")
def test_on_a_full_disk_a_store_covers_what_it_can_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    with FileStore(folder, options=FileOptions(segment_bytes=2048)) as store:
        for number in range(150):
            store.enqueue([job(f"j-{number}")])
        assert store._runner.maintenance._builder is None
        log_of(store).page[FULL] = True
        assert store.totals().seq == 150
        wait_until(lambda: build_ended(store))
        assert len(list(folder.glob("snapshot-0*"))) == 1
        assert not log_of(store).page[FULL], "the builder has found room"
        assert store.room().is_full is False


@rule("W8")
def test_a_builder_that_fails_is_logged_and_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "SNAPSHOT_PAUSE_S", 0.0)
    folder = tmp_path / "jobs"
    options = FileOptions(segment_bytes=2048, snapshot_bytes=4096)
    with FileStore(folder, options=options) as store, caplog.at_level("WARNING"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", shutil.which("false"))
            fill(store, 150)
            wait_until(lambda: "the snapshot of" in caplog.text)
        assert "failed (exit code 1: no message); it is retried" in caplog.text
        (folder / "snapshot-00000000000000ff.new").write_bytes(b"of a builder that was killed")
        fill(store, 150)
        wait_until(lambda: build_ended(store) and not list(folder.glob("snapshot-0*.new")))
        assert len(list(folder.glob("snapshot-0*"))) == 1


@rule("W8")
def test_builders_that_fail_in_a_row_are_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SNAPSHOT_PAUSE_S", 0.001)
    monkeypatch.setattr(maintenance, "LONGEST_PAUSE_S", 0.004)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with FileStore(tmp_path / "jobs", options=FileOptions(segment_bytes=2048, snapshot_bytes=4096)) as store:
        own, pauses = store._runner.maintenance, set[float]()
        until = time.monotonic() + 30
        while 0.004 not in pauses and time.monotonic() < until:
            fill(store, 10)
            pauses.add(own._pause_s)
        assert pauses >= {0.001, 0.004}


@rule("W4", "W8")
def test_the_first_look_of_a_boot_leaves_the_builders_lock_where_it_is(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    open_simulated(machine, tmp_path).close()
    machine.put("snapshot-lock", b"")
    machine.put("snapshot-0000000000000001", b"a stray")
    later = machine.copy()
    open_simulated(later, tmp_path).close()
    assert "snapshot-lock" in later.files()
    assert "snapshot-0000000000000001" not in later.files()


@rule("W8", "W14")
def test_opening_stays_short_whatever_has_passed_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in events read, not in time."""
    monkeypatch.setattr(batch, "PRUNE_EVERY_S", 0.0)
    machine, clock = SimulatedMachine(), ManualClock()
    options = FileOptions(segment_bytes=4096, snapshot_bytes=2**40, retain_count=20)

    def opened() -> FileStore:
        return FileStore(tmp_path, options=options, clock=clock, disk=machine.process(), machine=machine)

    store = opened()
    passed = 0
    for round_no in range(100):
        passed += len(store.enqueue([job(f"j-{round_no}-{number}") for number in range(10)]))
        leases = store.claim("worker", ["q"], 10)
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        if round_no % 10 == 9:
            snapshot(machine, tmp_path, segment_bytes=4096)
    read: list[int] = []
    events_of = Frame.events

    def counting(frame: Frame) -> list[object]:
        events = events_of(frame)
        read.append(len(events))
        return events  # type: ignore[return-value]

    monkeypatch.setattr(Frame, "events", counting)
    reopened = opened()
    assert reopened.totals().counts[JobState.SUCCEEDED] <= 40
    assert passed == 1_000
    assert sum(read) < 200
    kept = {name: len(content) for name, content in machine.files().items() if not name.startswith("reserve")}
    assert sum(kept.values()) < 40_000
