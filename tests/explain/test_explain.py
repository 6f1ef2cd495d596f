"""What is said of a job in every situation, on the stores of one machine. PostgreSQL: tests/postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.store.memory import MemoryStore
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.store import FileStore
from leasemill.testing.conformance import DurableHarness, Harness, KeptHarness
from tests.explain.situations import ExplainSuite


class TestMemory(ExplainSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        harness = KeptHarness(MemoryStore)
        yield harness
        harness.close()


class TestFile(ExplainSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[Harness]:
        options = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)
        harness = DurableHarness(lambda clock: FileStore(tmp_path / "jobs", options=options, clock=clock))
        yield harness
        harness.close()
