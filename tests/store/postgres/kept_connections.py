"""Connections of stores that are closed after a test, kept for the store of the next one.

A new session parses and plans every statement again, which is most of what a short test costs the server. Nothing is
kept of a store that is opened again within a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leasemill.store.base import Store
from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.driver.exchange import StoreConnection
from leasemill.store.postgres.store import PostgresStore


class KeptConnections:
    """Of one URL. What is idle in a pool is between two transactions."""

    def __init__(self) -> None:
        self._kept: list[StoreConnection] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        connected = Connections._connected

        def connect(connections: Connections, has_settings: bool) -> StoreConnection:
            if not self._kept:
                return connected(connections, has_settings)
            connections.has_connected = True
            return self._kept.pop()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connections, "_connected", connect)
            yield
        for connection in self._kept:
            connection.close()

    def keep(self, store: Store) -> None:
        """The connections of a store that is about to be closed."""
        assert isinstance(store, PostgresStore)
        pool = store._connections._pool
        idle, pool._idle = pool._idle, []
        self._kept += [connection for connection in idle if not connection.closed]
