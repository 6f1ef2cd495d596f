"""Jobs and handles while a worker runs, in memory and on a folder. PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill import open_store
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from tests.api.work_suite import WorkSuite


class TestMemory(WorkSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestFile(WorkSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with open_store(f"file:{tmp_path / 'jobs'}") as store:
            yield store
