"""The conformance suite over a socket: the client, the server, and `memory:` or `file:` behind it.

`make conformance-http` runs it on PostgreSQL too; here that is a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasemill.store.base import Store
from leasemill.store.http.store import HttpStore
from leasemill.store.memory import MemoryStore
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import ConformanceSuite, Harness
from tests.lab.http_server import ServerThread

SMALL = FileOptions(segment_bytes=64 * 1024, does_maintenance=False)


class HttpHarness:
    """A store of its own behind the server; `reopen` opens the client again."""

    def __init__(self, server: ServerThread, open_store: Callable[[ManualClock], Store]) -> None:
        self.clock = ManualClock()
        self.behind = open_store(self.clock)
        self._serving = server.serving(self.behind)
        self._serving.__enter__()
        self._url = server.url
        self._store = HttpStore(self._url, wall=self.clock)

    @property
    def store(self) -> Store:
        return self._store

    def reopen(self) -> None:
        self._store.close()
        self._store = HttpStore(self._url, wall=self.clock)

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


class TestHttpOverFile(ConformanceSuite):
    @pytest.fixture
    def harness(self, server: ServerThread, tmp_path: Path) -> Iterator[Harness]:
        harness = HttpHarness(server, lambda clock: FileStore(tmp_path / "jobs", options=SMALL, clock=clock))
        yield harness
        harness.close()
