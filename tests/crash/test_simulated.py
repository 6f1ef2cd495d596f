"""`file:` on a disk that tears, forgets, reorders and fails. A slice of what `make chaos` runs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.testing.rules import rule
from tests.crash import simulations
from tests.crash.damage import Behind, DamagedFolder, TornLog
from tests.crash.lab import disk_of, log_of, open_simulated
from tests.lab.faults import Operation, SimulatedDisk, SimulatedMachine, Sync

BEHIND = list(Behind)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@pytest.fixture(scope="module")
def torn_log(tmp_path_factory: pytest.TempPathFactory) -> TornLog:
    log = TornLog(tmp_path_factory.mktemp("torn"))
    assert log.events >= 400
    return log


@pytest.fixture(scope="module")
def damaged_folder(tmp_path_factory: pytest.TempPathFactory) -> DamagedFolder:
    return DamagedFolder(tmp_path_factory.mktemp("damaged"))


@rule("W2", "W3", "W4")
def test_torn_around_the_borders_of_frames_a_log_gives_its_longest_whole_prefix(torn_log: TornLog) -> None:
    for number, offset in enumerate(sorted(set(torn_log.borders()))[::7]):
        torn_log.check(offset, BEHIND[number % len(BEHIND)])


@rule("W2", "W3", "W4")
@pytest.mark.parametrize("behind", Behind)
def test_torn_anywhere_a_log_gives_its_longest_whole_prefix(torn_log: TornLog, behind: Behind) -> None:
    for offset in torn_log.offsets()[37 * BEHIND.index(behind) :: 37 * 6]:
        torn_log.check(offset, behind)


@rule("W3")
def test_damage_is_cut_or_refused_as_a_plain_reading_of_the_format_says(damaged_folder: DamagedFolder) -> None:
    outcomes = Counter(damaged_folder.check(seed) for seed in range(500))
    assert outcomes["refused"] > 50
    assert outcomes["tail cut"] > 20


@rule("W1", "W3", "W4", "W6", "W8")
def test_a_process_may_die_at_any_operation(tmp_path: Path) -> None:
    operations = simulations.operations_of_a_script(1, tmp_path)
    assert operations > 300
    for count in range(1, operations + 1, 7):
        simulations.crash_at(1, tmp_path, count, steps_after=30)


@rule("W2", "W6", "W9")
def test_a_process_may_die_at_any_store_to_the_control_page(tmp_path: Path) -> None:
    operations = simulations.operations_of_a_script(3, tmp_path, counts_stores=True)
    assert operations > 1_000
    for count in range(1, operations + 1, 23):
        simulations.crash_at(3, tmp_path, count, steps_after=20, counts_stores=True)


@rule("W1", "W3", "W4", "W6", "W8")
def test_the_power_may_go_at_any_operation(tmp_path: Path) -> None:
    operations = simulations.operations_of_a_script(2, tmp_path)
    for count in range(1, operations + 1, 7):
        simulations.lose_power_at(2, tmp_path, count, luck=1)


@rule("W1", "W4", "W6")
@pytest.mark.parametrize("seed", range(0, 100, 25))
def test_what_was_not_synced_may_be_lost_in_any_order(tmp_path: Path, seed: int) -> None:
    for number in range(seed, seed + 25):
        simulations.lose_unsynced(number, tmp_path)


@rule("W1", "W5")
@pytest.mark.parametrize("leaves", Sync)
def test_after_a_failed_sync_nothing_is_acknowledged_that_is_not_durable(tmp_path: Path, leaves: Sync) -> None:
    for count in range(1, 51, 4):
        simulations.fail_sync_at(count, tmp_path, count, leaves)


@rule("W5")
def test_a_recovery_between_a_sync_and_its_acknowledgement_is_noticed(tmp_path: Path) -> None:
    """A sync can seem to succeed because another process's failed and its pages were called clean."""
    machine = SimulatedMachine()
    writer, failing, third = (open_simulated(machine, tmp_path) for _ in range(3))
    for store in (writer, failing, third):
        store.totals()

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
            third.enqueue([job("third")])

    machine.before = fail_another_sync
    with pytest.raises(Unavailable, match="repeat the call"):
        writer.enqueue([job("lost")])
    assert third.job("lost") is None
    assert writer.enqueue([job("lost")]) == [c.Enqueued("lost")]


@rule("W5")
def test_a_process_that_only_reads_recovers_the_folder_too(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    writer, reader = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
    writer.enqueue([job("first")])
    machine.fail_sync_at(1, disk_of(writer))
    with pytest.raises(Unavailable):
        writer.enqueue([job("second")])
    machine.kill(disk_of(writer))
    assert reader.job("first") is not None


@rule("W5", "W9")
def test_a_process_that_appends_unread_follows_a_recovery(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    blind, failing = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
    blind.run(c.Enqueue([job("a")], are_new=True))
    machine.fail_sync_at(1, disk_of(failing))
    with pytest.raises(Unavailable):
        failing.run(c.Enqueue([job("b")], are_new=True))
    assert failing.run(c.Enqueue([job("c")], are_new=True)) == [c.Enqueued("c")]
    assert blind.run(c.Enqueue([job("d")], are_new=True)) == [c.Enqueued("d")]
    machine.lose_power(random.Random(1))
    after = open_simulated(machine, tmp_path)
    assert [after.job(one) is not None for one in ("a", "c", "d")] == [True, True, True]


@rule("W6", "W7")
@pytest.mark.parametrize("at", range(1, 12))
def test_a_spare_may_come_from_another_process_at_any_moment_of_a_rotation(tmp_path: Path, at: int) -> None:
    machine = SimulatedMachine()
    store, other = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path, segment_bytes=256)
    store.enqueue([job(f"before-{number}") for number in range(60)])
    seen: list[Operation] = []

    def make_a_spare(disk: SimulatedDisk, operation: Operation, _name: str) -> None:
        if disk is disk_of(store):
            seen.append(operation)
            if len(seen) == at:
                log_of(other).space.prepare_spare()

    machine.before = make_a_spare
    store.enqueue([job(f"behind-{number}") for number in range(60)])
    assert len(seen) >= at
    assert len([name for name in machine.files() if name.startswith("segment-")]) == 2
    assert open_simulated(machine.copy(), tmp_path).job("behind-59") is not None


@rule("W6")
def test_processes_with_segments_of_different_sizes_share_a_folder(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    small = open_simulated(machine, tmp_path, segment_bytes=512)
    large = open_simulated(machine, tmp_path, segment_bytes=64 * 1024)
    for turn in range(5):
        log_of(small).space.prepare_spare()
        large.enqueue([job(f"large-{turn}-{number}") for number in range(100)])
        small.enqueue([job(f"small-{turn}")])
        assert small.job(f"large-{turn}-99") is not None
    assert open_simulated(machine.copy(), tmp_path).totals().seq == 505
