"""Operating a store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operate.operating import Desk, OperateSuite


class TestPostgres(OperateSuite):
    @pytest.fixture
    def desk(self, postgres_url: str) -> Iterator[Desk]:
        desk = Desk(postgres_url)
        yield desk
        desk.store.close()
