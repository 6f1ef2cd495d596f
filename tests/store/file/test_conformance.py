"""The conformance suite on `file:`: kept open, and opened again before every step.

Kept open, it is the whole suite. The others run what a store remembers: what is refused leaves nothing to remember, and
whoever waits waits in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.store.file.options import FileOptions
from leasemill.store.file.spill import state as spill
from leasemill.store.file.store import FileStore
from leasemill.store.presence import FolderPresence
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import ConformanceSuite, DurableHarness, Harness, ReopeningHarness
from leasemill.testing.conformance.async_calls import Awaiting
from leasemill.testing.conformance.claim import Claiming
from leasemill.testing.conformance.ends import Ending
from leasemill.testing.conformance.execution import Executing
from leasemill.testing.conformance.groups import Grouping
from leasemill.testing.conformance.lanes import Lanes
from leasemill.testing.conformance.limits import Limiting
from leasemill.testing.conformance.ticks import Ticking
from leasemill.testing.conformance.validation import Refusing
from leasemill.testing.conformance.watches import Watching
from leasemill.testing.conformance.worklease import WorkLeases
from tests.crash.lab import snapshot
from tests.lab.faults import SimulatedMachine

SMALL = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)
SMALLEST = FileOptions(segment_bytes=1024, does_maintenance=False)
NOT_REMEMBERED = (Refusing, Watching, Ending, Awaiting)


class Remembered(*(family for family in ConformanceSuite.__bases__ if family not in NOT_REMEMBERED)):  # type: ignore[misc]
    """Every family of rules that is about what was written."""


def simulated(machine: SimulatedMachine, clock: ManualClock, folder: Path) -> FileStore:
    """`folder`: for the records of workers, which are beside the log and not simulated."""
    store = FileStore("no folder", options=SMALLEST, clock=clock, disk=machine.process(), machine=machine)
    store.presence = FolderPresence(folder, lambda: machine.since_boot_ns() // 1_000, store.order)
    return store


class TestFile(ConformanceSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: FileStore(tmp_path / "jobs", options=SMALL, clock=clock))
        yield harness
        harness.close()


class TestFileSpilled(Remembered):
    """Every job that may leave memory does."""

    @pytest.fixture
    def harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        monkeypatch.setattr(spill, "KEPT_IN_MEMORY", 0)
        monkeypatch.setattr(spill, "SPILLED_AT_ONCE", 1)
        machine = SimulatedMachine()
        harness = DurableHarness(lambda clock: simulated(machine, clock, tmp_path))
        yield harness
        harness.close()


class TestFileReopened(Claiming, Executing, Lanes, Limiting, Grouping, Ticking, WorkLeases):
    """From the log alone, also with rotation at every few steps, a segment being smaller than most tests' events.

    A snapshot is made from what the log gives: that all other events can be read again is shown below as well.
    """

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        machine = SimulatedMachine()

        def opened(clock: ManualClock) -> FileStore:
            return simulated(machine, clock, tmp_path)

        harness = ReopeningHarness(opened)
        yield harness
        harness.close()


class TestFileReopenedFromSnapshots(Remembered):
    """Before every step a snapshot stands for all that is sealed."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        machine = SimulatedMachine()

        def opened(clock: ManualClock) -> FileStore:
            snapshot(machine, tmp_path)
            return simulated(machine, clock, tmp_path)

        harness = ReopeningHarness(opened)
        yield harness
        harness.close()
