"""Two processes on a simulated machine, and beside them the kernel alone, which knows what they may answer.

As long as every call is answered there is one truth. A call that ends in a crash or in Unavailable may have happened
or not, as a whole: from then on there are two, until an answer or the state itself shows which. What was acknowledged
is in all of them. When none is left, something acknowledged was lost, or something is half there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import check
from leasemill.store.file.reader import Superseded
from leasemill.store.file.spill import state as spill
from leasemill.store.file.store import FileStore
from leasemill.store.file.tickets import LogTicket
from leasemill.testing.clock import ManualClock
from tests.crash.lab import SEGMENT_BYTES, digest_of, following, log_of, open_simulated, snapshot, state_of
from tests.crash.walk import HandOver, Model, Walk
from tests.crash.walk_limits import LimitWalk
from tests.lab.faults import SimulatedCrash, SimulatedDisk, SimulatedMachine

MOST_TRUTHS = 64


@contextmanager
def little_in_memory() -> Iterator[None]:
    """Scenes are short: else nothing would be spilled."""
    kept, tidied = spill.KEPT_IN_MEMORY, spill.SPILLED_AT_ONCE
    try:
        set_in_memory(1, 1)
        yield
    finally:
        set_in_memory(kept, tidied)


def set_in_memory(kept: int, tidied: int) -> None:
    for name, number in (("KEPT_IN_MEMORY", kept), ("SPILLED_AT_ONCE", tidied)):
        setattr(spill, name, number)  # they are Final to type checkers


class Lost(AssertionError):
    """What a store answers or holds is nothing it may."""


def run_on(store: FileStore, command: c.Command[Any]) -> tuple[c.Command[Any], object]:
    """What was carried out, and the answer. An ack with a claim as the thread does it that leads for event loops, but
    here: what ends a process is to end its caller too."""
    if not isinstance(command, HandOver):
        return command, store.run(command)
    check(command.ack)
    check(command.claim)
    acking, claiming = LogTicket(command.ack), LogTicket(command.claim)
    store._runner.run([acking, claiming])
    if acking.error is not None:
        raise acking.error
    if isinstance(claiming.error, Unavailable):  # no space for more leases
        return command.ack, acking.answer
    return command, [acking.answer, None if claiming.error is not None else claiming.answer]


def prepare_room(store: FileStore) -> None:
    """As a folder's maintenance does: a spare segment, and the reserves."""
    log_of(store).measure_room()
    log_of(store).space.prepare_spare()


class Scene:
    """`act` one step at a time; faults are the machine's."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        processes: int = 2,
        segment_bytes: int = SEGMENT_BYTES,
        has_limits: bool = True,
        counts_stores: bool = False,
    ) -> None:
        self.source = random.Random(seed)
        self.machine = SimulatedMachine(counts_stores=counts_stores)
        self.clock = ManualClock()
        self.truths = [Model()]
        self.crashes = 0
        self.refusals: list[str] = []
        self.acknowledged = 0
        self._folder = folder
        self._segment_bytes = segment_bytes
        kind = LimitWalk if has_limits else Walk
        self._walk = kind(self.source, uniqueness=0.2 if has_limits else 0.0, hands_over=True)
        self._stores: list[FileStore | None] = [None] * processes
        self._disks = [self.machine.process() for _ in range(processes)]

    # Steps

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """One thing happens, to one of the processes."""
        index = self.source.randrange(len(self._stores))
        what = self.source.choices(("act", "blind", "reopen", "snapshot", "spare"), (86, 5, 4, 3, 5))[0]
        self.clock.advance(us=self.source.choice((0, 1, 1_000, 400_000)))
        match what:
            case "act":
                self.act(index)
            case "blind":
                self.close(index)
                self.call(index, self._walk.next_enqueue())
            case "reopen":
                self.close(index)
            case "snapshot":
                self.snapshot()
            case _:
                self._suffer(index, prepare_room)

    def act(self, index: int) -> None:
        self.call(index, self._walk.next(self.truths[0].state))

    def call(self, index: int, command: c.Command[Any]) -> object:
        """Ask a process; what it answers must be what the kernel alone would."""
        try:
            self.store(index)
        except SimulatedCrash:
            self.bury(index)
            return None
        except Unavailable as error:
            self.refusals.append(str(error))  # it was never asked
            return None
        store = self.store(index)
        try:
            with following(store, self.truths, self.clock.now()):
                command, given = run_on(store, command)
        except SimulatedCrash:
            self.bury(index)
            self._split(command)
            return None
        except Unavailable as error:
            self.refusals.append(str(error))
            self._split(command)
            return None
        except Exception as error:  # noqa: BLE001  (whatever it is, it must be the kernel's)
            given = type(error), str(error)
        self._keep(command, given)
        self.acknowledged += 1
        return given

    def store(self, index: int) -> FileStore:
        store = self._stores[index]
        if store is None:
            store = self._stores[index] = open_simulated(
                self.machine, self._folder, self.clock, disk=self._disks[index], segment_bytes=self._segment_bytes
            )
        return store

    def disk(self, index: int) -> SimulatedDisk:
        return self._disks[index]

    def close(self, index: int) -> None:
        store, self._stores[index] = self._stores[index], None
        if store is not None:
            store.close()

    def snapshot(self) -> None:
        try:
            snapshot(self.machine, self._folder, segment_bytes=self._segment_bytes)
        except SimulatedCrash:
            self.crashes += 1
        except (OSError, Unavailable, Superseded):
            pass  # the builder ends, and the next one begins again

    # Ends

    def lose_power(self) -> None:
        """And look, in the new boot."""
        self.machine.lose_power(self.source)
        self._stores = [None] * len(self._stores)
        self._disks = [self.machine.process() for _ in self._disks]
        self.truths = [truth.boot() for truth in self.truths]
        self.look(0)

    def look(self, index: int) -> None:
        """The state must be one of those it may be, and sound."""
        store = self.store(index)
        try:
            with following(store, self.truths, self.clock.now()):
                found = digest_of(store)
        except (Unavailable, SimulatedCrash):
            self._split(c.GetTotals())
            raise
        self.truths = [truth for truth in self.truths if truth.digest() == found][:1]
        if not self.truths:
            raise Lost(f"the state of process {index} is none it may be in")
        if broken := violations(state_of(store)):
            raise Lost(broken[0])

    def look_after_failure(self, index: int, tries: int = 5) -> None:
        """The same, when a fault may still strike: it must pass after a few tries."""
        for _ in range(tries):
            try:
                return self.look(index)
            except Unavailable as error:
                self.refusals.append(str(error))
            except SimulatedCrash:
                self.bury(index)
        raise Lost(f"the folder cannot be used any more: {self.refusals[-1]}")

    # What may be true

    def _split(self, command: c.Command[Any]) -> None:
        """It happened, or it did not; and before it, or alone, what the process records that opened the folder. On a
        full disk an ack with a claim may have been the ack alone: the claim is refused for itself (W7)."""
        now = self.clock.now()
        carried_out: list[c.Command[Any]] = [command]
        if isinstance(command, HandOver) and self.machine.is_full:
            carried_out.append(command.ack)
        for truth in list(self.truths):
            settled = truth.copy()
            settled.settle(now)
            for before in (truth, settled):
                found = [before]
                for one in carried_out:
                    ahead = before.copy()
                    ahead.answer(one, now)
                    found.append(ahead)
                for model in found:
                    if model.digest() not in {other.digest() for other in self.truths}:
                        self.truths.append(model)
        if len(self.truths) > MOST_TRUTHS:
            raise Lost(f"no call was answered for long: {self.refusals[-1:]}")

    def _keep(self, command: c.Command[Any], given: object) -> None:
        expected = [truth.answer(command, self.clock.now()) for truth in self.truths]
        self.truths = [truth for truth, answer in zip(self.truths, expected, strict=True) if answer == given]
        if not self.truths:
            raise Lost(f"{command} was answered {given}, it should be {expected[0]}")

    def bury(self, index: int) -> None:
        """A process has died: another one takes its place."""
        self.crashes += 1
        self._stores[index] = None
        self._disks[index] = self.machine.process()

    def _suffer(self, index: int, act: Callable[[FileStore], object]) -> None:
        try:
            act(self.store(index))
        except SimulatedCrash:
            self.bury(index)
        except (OSError, Unavailable):
            pass
