"""Where a failure takes place: in memory, or on a machine that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from leasemill.store.memory import MemoryStore
from leasemill.testing.conformance import Harness, KeptHarness
from tests.failures.support import FailingMachine
from tests.process.support import Scene


@pytest.fixture
def harness() -> Iterator[Harness]:
    """A store in memory with a clock of its own."""
    harness = KeptHarness(MemoryStore)
    yield harness
    harness.close()


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FailingMachine]:
    """A folder on a machine that can lose its power."""
    failing = FailingMachine(tmp_path)
    yield failing
    failing.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A folder and worker processes on it."""
    with ExitStack() as cleaning:
        yield Scene(f"file:{tmp_path / 'jobs'}", tmp_path, cleaning)
