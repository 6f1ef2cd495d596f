"""Retention (O7): jobs that succeeded long ago, or beyond a number, are forgotten; so are idle requests and rates, and
unique keys that nobody holds. Each call is one short transaction; `forgetting.py` decides when it is made."""

from __future__ import annotations

from typing import Final, NamedTuple

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8, texts
from leasemill.store.postgres.wire.connections import Connection, Connections

BATCH: Final = 2_000
JOINS_LEFT: Final = 100
"""How many rows of additions an open group may have for good."""


class Pruned(NamedTuple):
    """What a batch did, and saw."""

    forgotten: int
    has_more_rows: bool
    """There may be more to forget: not all rows of finished were looked at."""
    last_at: int | None
    """When the last that were forgotten had ended."""
    row_count: int
    """In how many rows of finished they were."""
    succeeded: int
    """How many succeeded jobs there were."""


class Retention:
    """Of one store."""

    def __init__(self, connections: Connections, database: Database) -> None:
        self._connections = connections
        self._database = database
        self._looked_at_key = ("", "")

    def prune(self, command: c.Prune) -> int:
        """How many were forgotten."""

        def work(connection: Connection) -> int:
            with connection.transaction():
                lock_retention(self._database, connection)
                self._prune_groups(connection, command)
                pruned = self._prune(connection, command, from_at=0, rows=command.limit)
            self._database.all(connection, "tally", {})
            return pruned.forgotten

        return self._connections.run(work, is_repeatable=False)

    def prune_some(self, command: c.Prune, *, from_at: int, rows: int) -> Pruned | None:
        """Only jobs that ended at `from_at` or later, from at most `rows` rows of finished. None: another process is
        pruning."""

        def work(connection: Connection) -> Pruned | None:
            with connection.transaction():
                if not lock_retention(self._database, connection, waits=False):
                    return None
                pruned = self._prune(connection, command, from_at=from_at, rows=rows)
            self._database.all(connection, "tally", {})
            return pruned

        return self._connections.run(work, is_repeatable=False)

    def prune_groups(self, command: c.Prune) -> int:
        """How many groups were forgotten; none, if another is at it."""

        def work(connection: Connection) -> int:
            with connection.transaction():
                if not lock_retention(self._database, connection, waits=False):
                    return 0
                return self._prune_groups(connection, command)

        return self._connections.run(work, is_repeatable=False)

    def _prune(self, connection: Connection, command: c.Prune, *, from_at: int, rows: int) -> Pruned:
        given = {**_given(command), "from_at": int8(from_at), "rows": int8(rows)}
        return Pruned(*self._database.one(connection, "prune", given))

    def _prune_groups(self, connection: Connection, command: c.Prune) -> int:
        (count,) = self._database.one(connection, "prune_groups", _given(command))
        return int(count)

    def now(self) -> int:
        """The store's time."""
        (now,) = self._connections.run(lambda connection: self._database.one(connection, "clock", {}))
        return int(now)

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
        queue, key = self._looked_at_key
        given = {"after_queue": queue, "after": key, "limit": int8(BATCH)}
        count, last, queues, keys = self._database.one(connection, "stale_keys", given)
        if keys:
            with connection.transaction():
                named = {"queues": texts(queues), "keys": texts(keys)}
                locked = self._database.all(connection, "lock_stale_keys", named)
                named = {"queues": texts([queue for queue, _ in locked]), "keys": texts([key for _, key in locked])}
                self._database.one(connection, "forget_keys", named)
        self._looked_at_key = last if count == BATCH else ("", "")
        return int(count)


def lock_retention(database: Database, connection: Connection, *, waits: bool = True) -> bool:
    """Who forgets jobs that succeeded is alone with it, so that none is counted twice. False: another is at it."""
    if waits:
        connection.execute("select pg_advisory_xact_lock(%s)", [int8(database.retention_key)])
        return True
    row = connection.execute("select pg_try_advisory_xact_lock(%s)", [int8(database.retention_key)]).fetchone()
    return row is not None and bool(row[0])


def _given(command: c.Prune) -> dict[str, object]:
    return {"before": int8(command.before), "keep": int8(command.keep), "limit": int8(command.limit)}
