"""Retention (O7): jobs that succeeded long ago, or beyond a number, are forgotten; so are idle requests and rates, and
unique keys that nobody holds."""

from __future__ import annotations

import time
from typing import Final

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8, texts
from leasemill.store.postgres.wire.connections import LOGGER, Connection, Connections
from leasemill.store.postgres.wire.url import PostgresOptions

EVERY_S: Final = 30.0
LONGEST_S: Final = 5.0
BATCH: Final = 2_000
JOINS_LEFT: Final = 100
"""How many rows of additions an open group may have for good."""


class Retention:
    """Of one store."""

    def __init__(self, connections: Connections, database: Database, options: PostgresOptions) -> None:
        self._connections = connections
        self._database = database
        self._options = options
        self._ran_at_s = time.monotonic()
        self._looked_at_key = ""

    def prune(self, command: c.Prune, *, waits: bool) -> int:
        """How many were forgotten. Without `waits` none, if another is at it."""
        given = {"before": int8(command.before), "keep": int8(command.keep), "limit": int8(command.limit)}

        def work(connection: Connection) -> int:
            with connection.transaction():
                if not lock_retention(self._database, connection, waits=waits):
                    return 0
                self._database.do(connection, "prune_groups", given)
                (count,) = self._database.one(connection, "prune", given)
            self._database.all(connection, "tally", {})
            return int(count)

        return self._connections.run(work, is_repeatable=False)

    def run(self) -> None:
        """Now and then; left to the next round where another is at it."""
        if time.monotonic() - self._ran_at_s < EVERY_S:
            return
        self._ran_at_s = time.monotonic()
        try:
            self._run_for(LONGEST_S)
        except Unavailable as error:
            LOGGER.warning("retention postponed: %s", error)

    def _run_for(self, seconds: float) -> None:
        (now,) = self._connections.run(lambda connection: self._database.one(connection, "clock", {}))
        before = now - int(self._options.retain_for_s * 1_000_000)
        prune = c.Prune(before, self._options.retain_count, BATCH)
        until_s = time.monotonic() + seconds
        while self.prune(prune, waits=False) == BATCH and time.monotonic() < until_s:
            pass
        self._connections.run(self.fold_groups)
        for forget in (self.forget_requests, self.forget_rates, self.forget_keys):
            while self._connections.run(forget) == BATCH and time.monotonic() < until_s:
                pass

    def fold_groups(self, connection: Connection) -> None:
        """Open groups that grow by one member at a time are read as soon as others."""
        self._database.do(connection, "fold_open_groups", {"joins": int8(JOINS_LEFT)})

    def forget_requests(self, connection: Connection) -> int:
        (count,) = self._database.one(connection, "forget_requests", {"limit": int8(BATCH)})
        return int(count)

    def forget_rates(self, connection: Connection) -> int:
        (count,) = self._database.one(connection, "forget_rates", {"limit": int8(BATCH)})
        return int(count)

    def forget_keys(self, connection: Connection) -> int:
        """U6: rows of keys that hold nothing go, a page at a time, round and round. How many were looked at.

        Judged twice, the second time with the rows locked: a key may be taken again meanwhile.
        """
        given = {"after": self._looked_at_key, "limit": int8(BATCH)}
        count, last, stale = self._database.one(connection, "stale_keys", given)
        if stale:
            with connection.transaction():
                locked = self._database.all(connection, "lock_stale_keys", {"keys": texts(stale)})
                self._database.one(connection, "forget_keys", {"keys": texts([key for (key,) in locked])})
        self._looked_at_key = last if count == BATCH else ""
        return int(count)


def lock_retention(database: Database, connection: Connection, *, waits: bool = True) -> bool:
    """Who forgets jobs that succeeded is alone with it, so that none is counted twice. False: another is at it."""
    if waits:
        connection.execute("select pg_advisory_xact_lock(%s)", [int8(database.retention_key)])
        return True
    row = connection.execute("select pg_try_advisory_xact_lock(%s)", [int8(database.retention_key)]).fetchone()
    return row is not None and bool(row[0])
