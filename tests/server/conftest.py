"""One server for the tests of a module; each test has a store of its own behind it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from leasemill.server.app import ServerApp
from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


@pytest.fixture
def app(server: ServerThread, store: MemoryStore) -> Iterator[ServerApp]:
    with server.serving(store) as app:
        yield app


@pytest.fixture
def http(server: ServerThread, app: ServerApp) -> Iterator[httpx.Client]:
    """A program in another language: it knows paths and JSON."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
