"""A worker's metrics on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill import App
from leasemill.store.factory import open_store
from tests.worker.prometheus.suite import PrometheusSuite


class TestExporting(PrometheusSuite):
    @pytest.fixture
    def app(self, postgres_url: str) -> Iterator[App]:
        with open_store(postgres_url) as store:
            yield App(store=store)
