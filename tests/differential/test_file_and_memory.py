"""`file:` and the kernel alone, side by side: the same answers and the same state after every step of a random walk.

Two processes take turns on one folder, are closed, killed and opened again, append unread, and have their segments
rotated and covered by snapshots in between. A walk is decided by its seed, which a failure names; SEED=… runs that one
alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from leasemill.kernel.invariants import violations
from leasemill.store.file.build import build
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock, SeededEntropy
from leasemill.testing.rules import rule
from tests.crash.lab import digest_of, following, log_of, open_simulated, snapshot, state_of
from tests.crash.walk import QUEUES, Model, Walk, asked
from tests.crash.walk_limits import LimitWalk
from tests.lab.faults import SimulatedMachine

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(16))
SEEDS_ON_DISK = SEEDS[:3]
SMALL = FileOptions(segment_bytes=4096, snapshot_bytes=2**40, does_maintenance=False)


class Folder:
    """A folder with two processes, and what can happen to them."""

    def __init__(self, opened: Callable[[], FileStore], take_snapshot: Callable[[], object]) -> None:
        self._opened = opened
        self.take_snapshot = take_snapshot
        self.stores = [opened(), opened()]

    def reopen(self, index: int) -> None:
        self.stores[index].close()
        self.stores[index] = self._opened()

    def fresh(self) -> FileStore:
        return self._opened()

    def close(self) -> None:
        for store in self.stores:
            store.close()


def walk(
    folder: Folder, clock: ManualClock, seed: int, steps: int, *, uniqueness: float = 0.0, kind: type[Walk] = Walk
) -> None:
    source = random.Random(seed)
    commands, model = kind(source, uniqueness=uniqueness, hands_over=True), Model()
    again = f"seed {seed}; again: make test SEED={seed} PYTEST_ARGS='-k differential'"
    for step in range(steps):
        index = source.randrange(2)
        match source.choices(("act", "blind", "reopen", "snapshot", "spare"), (80, 4, 8, 3, 3))[0]:
            case "act":
                command = commands.next(model.state)
                with following(folder.stores[index], [model], clock.now()):
                    given = asked(folder.stores[index], command)
                assert given == model.answer(command, clock.now()), f"step {step}, {command}: {again}"
            case "blind":
                blind = commands.next_enqueue()
                with folder.fresh() as store:
                    with following(store, [model], clock.now()):
                        given = asked(store, blind)
                    assert given == model.answer(blind, clock.now()), f"step {step}: {again}"
                    is_unread = all(job.queue in QUEUES and job.rules is None for job in blind.jobs)
                    assert not is_unread or store._replica.state is None, "it was to be appended unread"
            case "reopen":
                folder.reopen(index)
            case "snapshot":
                folder.take_snapshot()
            case "spare":
                log_of(folder.stores[index]).space.prepare_spare()
        with following(folder.stores[index], [model], clock.now()):
            found = digest_of(folder.stores[index])
        assert found == model.digest(), f"step {step}: {again}"
        if step % 10 == 0:
            assert violations(state_of(folder.stores[index])) == [], f"step {step}: {again}"
        clock.advance(us=source.choice((0, 1, 1_000, 400_000, 3_000_000)))


@rule("W2", "W6", "W8", "W9", "W15", "I7", "C8")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_folder_answers_as_the_kernel_alone_does(tmp_path: Path, seed: int) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    folder = Folder(lambda: open_simulated(machine, tmp_path, clock), lambda: snapshot(machine, tmp_path))
    walk(folder, clock, seed, steps=300)
    folder.close()


@rule("U1", "U2", "U3", "U5", "U8", "U10", "W8", "W16")
@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_does_where_jobs_have_unique_keys(tmp_path: Path, seed: int) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    folder = Folder(lambda: open_simulated(machine, tmp_path, clock), lambda: snapshot(machine, tmp_path))
    walk(folder, clock, seed, steps=300, uniqueness=0.5)
    folder.close()


@rule("W2", "W6", "W8", "T1", "T2", "T6", "T10", "T13", "T14")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_folder_answers_as_the_kernel_alone_does_under_limits(tmp_path: Path, seed: int) -> None:
    machine, clock = SimulatedMachine(), ManualClock()
    folder = Folder(lambda: open_simulated(machine, tmp_path, clock), lambda: snapshot(machine, tmp_path))
    walk(folder, clock, seed, steps=300, uniqueness=0.2, kind=LimitWalk)
    folder.close()


@rule("W2", "W6", "W8", "W9", "W15", "I7")
@pytest.mark.parametrize("seed", SEEDS_ON_DISK)
def test_so_does_a_folder_on_a_real_disk(tmp_path: Path, seed: int) -> None:
    path, clock = tmp_path / "jobs", ManualClock()
    folder = Folder(
        lambda: FileStore(path, options=SMALL, clock=clock),
        lambda: build(path, keep_segments=bool(seed % 2)),
    )
    walk(folder, clock, seed, steps=300)
    folder.close()


@pytest.mark.parametrize("seed", SEEDS_ON_DISK)
def test_the_methods_draw_the_same_ids_and_tokens_on_both_stores(tmp_path: Path, seed: int) -> None:
    """The same clock and the same entropy: nothing else decides what a store answers."""
    clock = ManualClock()
    memory = MemoryStore(clock, SeededEntropy(seed))
    with FileStore(tmp_path, clock=clock, entropy=SeededEntropy(seed), options=SMALL) as file:
        source = random.Random(seed)
        commands = Walk(source, hands_over=True)
        for _ in range(100):
            command = commands.next(memory._state)
            assert asked(file, command) == asked(memory, command), f"seed {seed}"
            assert file.claim("w", ["q"], 2) == memory.claim("w", ["q"], 2), f"seed {seed}"
            clock.advance(us=source.choice((0, 1_000, 3_000_000)))
