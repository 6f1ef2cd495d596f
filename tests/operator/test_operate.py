"""Operating a folder. PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.operator.operating import Desk, OperateSuite
from tests.operator.run_time import RunTimeSuite
from tests.process.support import Scene


class TestFile(OperateSuite):
    @pytest.fixture
    def desk(self, tmp_path: Path) -> Iterator[Desk]:
        desk = Desk(f"file:{tmp_path / 'jobs'}")
        yield desk
        desk.store.close()


class TestFileAtRunTime(RunTimeSuite):
    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[Scene]:
        with ExitStack() as cleaning:
            yield Scene(f"file:{tmp_path / 'jobs'}", tmp_path, cleaning)
