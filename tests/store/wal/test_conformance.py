"""The conformance suite on `file:`: kept open, and opened again before every step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.shelf import state as shelf
from leasemill.store.wal.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import ConformanceSuite, DurableHarness, Harness, ReopeningHarness
from tests.crash.lab import snapshot
from tests.lab.faults import SimulatedMachine

SMALL = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)
SMALLEST = FileOptions(segment_bytes=1024, does_maintenance=False)


def simulated(machine: SimulatedMachine, clock: ManualClock) -> FileStore:
    return FileStore("no folder", options=SMALLEST, clock=clock, disk=machine.process(), machine=machine)


class TestFile(ConformanceSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: FileStore(tmp_path / "jobs", options=SMALL, clock=clock))
        yield harness
        harness.close()


class TestFileShelved(ConformanceSuite):
    """Every job that may leave memory does."""

    @pytest.fixture
    def harness(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
        monkeypatch.setattr(shelf, "KEPT_IN_MEMORY", 0)
        monkeypatch.setattr(shelf, "TIDIED_AT_ONCE", 1)
        machine = SimulatedMachine()
        harness = DurableHarness(lambda clock: simulated(machine, clock))
        yield harness
        harness.close()


class TestFileReopened(ConformanceSuite):
    """Also with rotation at every few steps, a segment being smaller than most tests' events."""

    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        machine = SimulatedMachine()

        def opened(clock: ManualClock) -> FileStore:
            return simulated(machine, clock)

        harness = ReopeningHarness(opened)
        yield harness
        harness.close()


class TestFileReopenedFromSnapshots(ConformanceSuite):
    """Before every step a snapshot stands for all that is sealed."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        machine = SimulatedMachine()

        def opened(clock: ManualClock) -> FileStore:
            snapshot(machine, tmp_path)
            return simulated(machine, clock)

        harness = ReopeningHarness(opened)
        yield harness
        harness.close()
