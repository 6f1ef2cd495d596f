"""Operating a folder. PostgreSQL: tests/postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.operating import Desk, OperateSuite


class TestFile(OperateSuite):
    @pytest.fixture
    def desk(self, tmp_path: Path) -> Iterator[Desk]:
        desk = Desk(f"file:{tmp_path / 'jobs'}")
        yield desk
        desk.store.close()
