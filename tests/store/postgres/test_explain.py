"""How every situation of a job is explained, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import DurableHarness, Harness
from tests.operator.situations import ExplainSuite


class TestPostgres(ExplainSuite):
    @pytest.fixture
    def harness(self, postgres_url: str) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: PostgresStore(postgres_url, clock=clock))
        yield harness
        harness.close()
