"""The conformance suite on PostgreSQL: sent by threads, and by an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import ConformanceSuite, DurableHarness, Harness
from tests.store.postgres.kept_connections import KeptConnections
from tests.store.postgres.loop_driven import loop_driven, running_loop


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


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as loop:
        yield loop


class TestPostgresByTheLoop(ConformanceSuite):
    @pytest.fixture
    def harness(self, postgres_url: str, kept: KeptConnections, loop: asyncio.AbstractEventLoop) -> Iterator[Harness]:
        harness = DurableHarness(lambda clock: loop_driven(postgres_url, clock, loop))
        yield harness
        kept.keep(harness.store)
        harness.close()
