"""Jobs and handles while a worker runs, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill import open_store
from leasemill.store.base import Store
from tests.api.work_suite import WorkSuite


class TestPostgres(WorkSuite):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(postgres_url) as store:
            yield store
