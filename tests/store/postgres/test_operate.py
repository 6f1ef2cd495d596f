"""Operating a store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.operator.operating import Desk, OperateSuite
from tests.operator.run_time import RunTimeSuite
from tests.process.support import Scene


class TestPostgres(OperateSuite):
    @pytest.fixture
    def desk(self, postgres_url: str) -> Iterator[Desk]:
        desk = Desk(postgres_url)
        yield desk
        desk.store.close()


class TestPostgresAtRunTime(RunTimeSuite):
    @pytest.fixture
    def scene(self, postgres_url: str, tmp_path: Path) -> Iterator[Scene]:
        with ExitStack() as cleaning:
            yield Scene(postgres_url, tmp_path, cleaning)
