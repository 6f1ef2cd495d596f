"""PostgreSQL behind a server: what its own way of waiting and answering could change.

`make conformance-http` runs the whole suite; here it is the part where calls wait, and every verb once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import ConformanceSuite, Harness
from leasemill.testing.conformance.acquire import Acquiring
from leasemill.testing.conformance.awaiting import Awaiting
from leasemill.testing.conformance.ends import Ending
from leasemill.testing.conformance.watching import Watching
from tests.lab.http_server import ServerThread
from tests.store.http.test_http_conformance import HttpHarness

IS_WHOLE = os.environ.get("LEASEMILL_FULL_HTTP") == "1"


class Slice(Watching, Ending, Awaiting, Acquiring):
    """Calls that wait, every verb in blocking and in async code, and one family of rules."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


class TestHttpOverPostgres(ConformanceSuite if IS_WHOLE else Slice):  # type: ignore[misc]
    @pytest.fixture
    def harness(self, server: ServerThread, postgres_url: str) -> Iterator[Harness]:
        harness = HttpHarness(server, lambda clock: PostgresStore(postgres_url, clock=clock))
        yield harness
        harness.close()
