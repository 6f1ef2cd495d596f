"""The conformance suite over a socket: the client, the server, and each kind of store behind it.

With `memory:` it is the whole suite. `file:` and PostgreSQL have their own whole runs without a server; here it is what
their own ways to wait and to answer could change. `make conformance-http` runs the whole suite with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasemill.store.base import Store
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.http.store import HttpStore
from leasemill.store.memory import MemoryStore
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import ConformanceSuite, Harness
from leasemill.testing.conformance.acquire import Acquiring
from leasemill.testing.conformance.async_calls import Awaiting
from leasemill.testing.conformance.ends import Ending
from leasemill.testing.conformance.lease import Leases
from leasemill.testing.conformance.watches import Watching
from tests.lab.http_server import ServerThread

SMALL = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)


IS_WHOLE = os.environ.get("LEASEMILL_FULL_HTTP") == "1"


class Slice(Watching, Ending, Awaiting, Acquiring, Leases):
    """Calls that wait, every verb in blocking and in async code, and two families of rules."""


class HttpHarness:
    """A store of its own behind the server; `reopen` opens the client again."""

    def __init__(self, server: ServerThread, open_store: Callable[[ManualClock], Store]) -> None:
        self.clock = ManualClock()
        self.behind = open_store(self.clock)
        self._serving = server.serving(self.behind)
        self._serving.__enter__()
        self._url = server.url
        self._store = HttpStore(self._url)

    @property
    def store(self) -> Store:
        return self._store

    def reopen(self) -> None:
        self._store.close()
        self._store = HttpStore(self._url)

    def close(self) -> None:
        self._store.close()
        self._serving.__exit__(None, None, None)
        self.behind.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


class TestHttpOverMemory(ConformanceSuite):
    @pytest.fixture
    def harness(self, server: ServerThread) -> Iterator[Harness]:
        harness = HttpHarness(server, MemoryStore)
        yield harness
        harness.close()


class TestHttpOverFile(ConformanceSuite if IS_WHOLE else Slice):  # type: ignore[misc]
    @pytest.fixture
    def harness(self, server: ServerThread, tmp_path: Path) -> Iterator[Harness]:
        harness = HttpHarness(server, lambda clock: FileStore(tmp_path / "jobs", options=SMALL, clock=clock))
        yield harness
        harness.close()


class TestHttpOverPostgres(ConformanceSuite if IS_WHOLE else Slice):  # type: ignore[misc]
    @pytest.fixture
    def harness(self, server: ServerThread, postgres_url: str) -> Iterator[Harness]:
        harness = HttpHarness(server, lambda clock: PostgresStore(postgres_url, clock=clock))
        yield harness
        harness.close()
