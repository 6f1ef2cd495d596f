"""The conformance suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import ConformanceSuite, DurableHarness, Harness


class TestPostgres(ConformanceSuite):
    @pytest.fixture
    def harness(self, postgres_url: str) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: PostgresStore(postgres_url, clock=clock))
        yield harness
        harness.close()
