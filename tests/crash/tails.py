"""A process dies at any step of its turn with the lock; whoever comes next must find exactly what it wrote.

A turn is: take the lock, write, record the tail on the control page, release the lock. A step is an operation of the
disk, a store to the control page or the unlocking. Each kind of successor has the next turns, two of them one after the
other: a frame that is whole at the death must not be overwritten by any of them, and nothing behind it be lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.image import digest, jobs_in_order
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import JobSpec
from leasemill.kernel.state import State
from leasemill.store.file.control import HOLDER, LAST, POISONED
from leasemill.store.file.inspect import examine
from leasemill.store.file.log import Log
from leasemill.store.file.reader import Superseded
from leasemill.store.file.snapshot import take_snapshot
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from tests.crash.lab import disk_of, log_of, open_simulated, state_of
from tests.lab.faults import Operation, SimulatedCrash, SimulatedDisk, SimulatedMachine

SEGMENT_BYTES = 1024
LARGE = b'"' + b"x" * (SEGMENT_BYTES * 3 // 4) + b'"'
"""More than is left in a segment in which a few jobs are."""


SEGMENT_STORE = 18
"""The step of a rotation at which a process records the first position of the new segment."""


class Damaged(AssertionError):
    """The log is not what its writers were answered."""


class Folder:
    """Processes of one folder. `blind` appends without reading, `decided` and `reader` have the state."""

    def __init__(self, path: Path, *, victim_was_last: bool) -> None:
        self.path = path
        self.machine = SimulatedMachine(counts_stores=True)
        self.clock = ManualClock()
        self.jobs: set[str] = set()
        self.victim_disk = self.machine.process()
        self.decided, self.reader, self.blind, self.dying_blind = (self.opened() for _ in range(4))
        self.dying = self.opened(self.victim_disk)
        self.dying.totals()
        self.append(self.decided)
        with log_of(self.decided).locked():
            log_of(self.decided).seal()  # now a snapshot can be taken
        for store in (self.decided, self.blind, self.dying_blind):
            self.append(store)
        self.reader.totals()
        self.append(self.dying)
        if not victim_was_last:
            self.append(self.blind)
        self.victims = [disk_of(self.dying), disk_of(self.dying_blind)]

    def opened(self, disk: SimulatedDisk | None = None) -> FileStore:
        return open_simulated(self.machine, self.path, self.clock, disk=disk, segment_bytes=SEGMENT_BYTES)

    def append(self, store: FileStore, payload: bytes = b"{}") -> None:
        """One job; it counts when the call returns."""
        job = JobSpec(f"job-{len(self.jobs)}", "q", "k", payload)
        store.run(c.Enqueue((job,), are_new=store not in (self.decided, self.dying)))
        self.jobs.add(job.id)

    def build(self, disk: SimulatedDisk | None = None, *, seal_first: bool = False) -> None:
        disk = disk or self.machine.process()
        log = Log(disk, self.machine, segment_bytes=SEGMENT_BYTES, lock_timeout_s=0.0)
        with suppress(Superseded):  # a recovery: the builder ends, and the next one begins again
            take_snapshot(disk, log, self.path, keep_segments=False, seal_first=seal_first)
        log.close()

    # Deaths

    def die(self, act: Victim, step: int) -> None:
        """What is whole in the log then counts from now on."""
        disk = self.machine.process()
        self.machine.crash_at(step)
        with suppress(SimulatedCrash):
            act(self, disk)
            raise AssertionError(f"its turn has no step {step}")
        self.machine.forget_faults()
        for victim in (*self.victims, disk):
            self.machine.kill(victim)
        self.jobs = ids(open_simulated(self.machine.copy(), self.path, self.clock, segment_bytes=SEGMENT_BYTES))

    # Looking

    def check(self, what: str) -> None:
        """Every process, one that opens the folder now, one after a boot, and one after a loss of power, has the same
        jobs in the same state, and all that were acknowledged."""
        fresh = self.opened()
        stores = {"reader": self.reader, "decided": self.decided, "blind": self.blind, "fresh": fresh}
        digests = {name: digest(self._sound(store, f"{what}: {name}")) for name, store in stores.items()}
        self._examine(what)
        self._sound(
            open_simulated(self.machine.copy(), self.path, self.clock, segment_bytes=SEGMENT_BYTES),
            f"{what}: next boot",
        )
        self.machine.lose_power(random.Random(what))
        self._sound(self.opened(), f"{what}: power lost")
        if len(set(digests.values())) != 1:
            raise Damaged(f"{what}: {digests}")

    def _sound(self, store: FileStore, what: str) -> State:
        found = ids(store)
        if found != self.jobs:
            raise Damaged(f"{what}: lost {sorted(self.jobs - found)}, unexpected {sorted(found - self.jobs)}")
        state = state_of(store)
        if broken := violations(state):
            raise Damaged(f"{what}: {broken[0]}")
        return state

    def _examine(self, what: str) -> None:
        """`leasemill wal verify`, which only reads."""
        folder = self.path / "exported"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, content in self.machine.files().items():
            (folder / name).write_bytes(content)
        facts = examine(folder)
        if facts.damage is not None or facts.violations or sum(facts.jobs.values()) != len(self.jobs):
            raise Damaged(f"{what}: verify finds {facts.damage}, {facts.violations}, {facts.jobs}")


def ids(store: FileStore) -> set[str]:
    return {job.spec.id for job in jobs_in_order(state_of(store))}


Victim = Callable[[Folder, SimulatedDisk], None]
"""What the process does that dies; the disk is for one that opens the folder for it."""


def _acquire(folder: Folder, _disk: SimulatedDisk) -> None:
    folder.dying.run(c.Acquire([c.AcquireRequest("acquired", "lane", 1, "worker", "token")]))


def _headers(folder: Folder, _disk: SimulatedDisk) -> None:
    folder.dying.enqueue([JobSpec("with-headers", "q", "k", headers={"trace": "1"})])


def _fail_a_sync(folder: Folder) -> None:
    log_of(folder.dying).page[POISONED] = 1


def _leave_a_frame(folder: Folder) -> None:
    """Another process dies first: it wrote a frame and did not record the tail."""
    folder.machine.crash_at(4)  # two stores, the write, the tail
    with suppress(SimulatedCrash):
        folder.append(folder.dying_blind)
        raise AssertionError("it should have died")
    folder.machine.forget_faults()


def _leave_a_seal(folder: Folder) -> None:
    """Another process dies first: it rotated, and did not record the new segment."""
    steps: list[Operation] = []
    folder.machine.before = lambda _disk, operation, _name: steps.append(operation)
    folder.machine.crash_at(SEGMENT_STORE)
    with suppress(SimulatedCrash):
        folder.append(folder.dying_blind, LARGE)
        raise AssertionError("it should have died")
    assert steps[-3:] == [Operation.SYNC_FOLDER, Operation.STORE, Operation.STORE], steps
    folder.machine.forget_faults()


def _open(folder: Folder, disk: SimulatedDisk) -> None:
    folder.append(folder.opened(disk))


VICTIMS: dict[str, Victim] = {
    "appends unread": lambda folder, _: folder.append(folder.dying_blind),
    "decides and appends": lambda folder, _: folder.append(folder.dying),
    "rotates unread": lambda folder, _: folder.append(folder.dying_blind, LARGE),
    "decides and rotates": lambda folder, _: folder.append(folder.dying, LARGE),
    "seals and takes a snapshot": lambda folder, disk: folder.build(disk, seal_first=True),
    "opens and appends": _open,
    "lists an acquire queue": _acquire,
    "raises the format": _headers,
    "recovers from a failed sync": lambda folder, _: folder.append(folder.dying),
    "finds a frame that another left": lambda folder, _: folder.append(folder.dying),
    "opens and finds a frame that another left": _open,
    "finds a seal that another left": lambda folder, _: folder.append(folder.dying),
    "opens and finds a seal that another left": _open,
}
BEFORE: dict[str, Callable[[Folder], None]] = {
    "recovers from a failed sync": _fail_a_sync,
    "finds a frame that another left": _leave_a_frame,
    "opens and finds a frame that another left": _leave_a_frame,
    "finds a seal that another left": _leave_a_seal,
    "opens and finds a seal that another left": _leave_a_seal,
}


def _older_version(folder: Folder) -> None:
    """What a process of version 0.1 does that opens the folder: it has not looked, and signs all the same."""
    disk = folder.machine.process()
    page = disk.control.cast("Q")
    disk.lock(0.0)
    page[LAST], page[HOLDER] = 0, 1
    page[LAST] = 4_711
    disk.unlock()
    folder.machine.kill(disk)


def _refused_in_the_lock(folder: Folder) -> None:
    """An error while the lock is held."""
    try:
        with log_of(folder.blind).locked():
            raise Unavailable("refused")
    except Unavailable:
        pass


SUCCESSORS: dict[str, Callable[[Folder], object]] = {
    "appends unread": lambda folder: folder.append(folder.blind),
    "appends unread and rotates": lambda folder: folder.append(folder.blind, LARGE),
    "decides": lambda folder: folder.append(folder.decided),
    "reads": lambda folder: folder.reader.totals(),
    "catches up": lambda folder: folder.reader.keep_up(),
    "opens": lambda folder: folder.opened().close(),
    "opens and appends unread": lambda folder: folder.append(folder.opened()),
    "takes a snapshot": lambda folder: folder.build(),
    "seals and takes a snapshot": lambda folder: folder.build(seal_first=True),
    "opens with an older version": _older_version,
    "fails in the lock": _refused_in_the_lock,
    "expires": lambda folder: folder.decided.expire(),
}


def _prepared(path: Path, victim: str, *, was_last: bool) -> Folder:
    folder = Folder(path, victim_was_last=was_last)
    if victim in BEFORE:
        BEFORE[victim](folder)
    return folder


def steps_of(path: Path, victim: str, *, was_last: bool) -> int:
    """How many steps its turn has."""
    folder = _prepared(path, victim, was_last=was_last)
    before = sum(folder.machine.operations.values())
    VICTIMS[victim](folder, folder.machine.process())
    return sum(folder.machine.operations.values()) - before


def cases(path: Path) -> Iterator[tuple[str, bool, int, str, str]]:
    """Each victim, whether it had the lock last, each step, each two successors."""
    for victim in VICTIMS:
        for was_last in (False, True):
            for step in range(1, steps_of(path, victim, was_last=was_last) + 1):
                for first in SUCCESSORS:
                    for second in SUCCESSORS:
                        yield victim, was_last, step, first, second


def run_case(path: Path, victim: str, was_last: bool, step: int, first: str, second: str) -> None:
    what = f"{victim} (was last: {was_last}), dies at step {step}; then one {first}, one {second}"
    logging.disable(logging.CRITICAL)  # torn tails are cut
    try:
        folder = _prepared(path, victim, was_last=was_last)
        folder.die(VICTIMS[victim], step)
        for successor in (first, second):
            SUCCESSORS[successor](folder)
        folder.append(folder.blind)
        folder.append(folder.decided)
        folder.check(what)
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
