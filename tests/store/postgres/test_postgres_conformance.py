"""The conformance suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import ConformanceSuite, DurableHarness, Harness
from tests.store.postgres.kept_connections import KeptConnections


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptConnections]:
    kept = KeptConnections()
    with kept.used():
        yield kept


class TestPostgres(ConformanceSuite):
    @pytest.fixture
    def harness(self, postgres_url: str, kept: KeptConnections) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: PostgresStore(postgres_url, clock=clock))
        yield harness
        kept.keep(harness.store)
        harness.close()
