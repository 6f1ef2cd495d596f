"""What a store does beside its verbs: expiry, admission, watermarks, retention.

The reaper's call does all of it, but for retention, which it begins. Claims look for expired leases too, every two
seconds (L7), before they are granted anything. A claim that was granted something does none of it before it returns;
one that was granted nothing does what may give it a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from psycopg.errors import LockNotAvailable

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.claim import LOOK
from leasemill.store.postgres import admission
from leasemill.store.postgres.admin.durability import durability
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import decide_expired
from leasemill.store.postgres.forgetting import Forgetting
from leasemill.store.postgres.retention import Retention
from leasemill.store.postgres.watermarks import Watermarks
from leasemill.store.postgres.wire.arrays import int8, int8s
from leasemill.store.postgres.wire.connections import LOGGER, Connection, Connections
from leasemill.store.postgres.wire.url import PostgresOptions

LOOK_WAIT_MS: Final = 200


class PostgresMaintenance:
    """Of one store. `wake`: called when jobs may have become claimable."""

    def __init__(
        self, connections: Connections, database: Database, options: PostgresOptions, wake: Callable[[], None]
    ) -> None:
        self._connections = connections
        self._database = database
        self._wake = wake
        self.watermarks = Watermarks(database)
        self.retention = Retention(connections, database)
        self.forgetting = Forgetting(connections, self.retention, options)
        self._has_warned = False

    def after_fork(self) -> None:
        self.watermarks.after_fork()
        self.forgetting.after_fork()

    def run(self, limit: int) -> list[c.Expiration]:
        """The reaper's call."""
        expired = self.expire(limit, self._database.expiry_position.from_at())
        self.admit()
        self._move(self.watermarks.keep)
        self.forgetting.begin()
        self._warn()
        return expired

    def look(self) -> None:
        """L7, before a claim of which it was time: whatever there is to claim, what has expired is claimable too. It
        waits for nobody's locks for long, since slots may be empty meanwhile; the next look will be at those leases."""
        self.expire(LOOK.limit, self._database.expiry_position.from_at(), longest_wait_ms=LOOK_WAIT_MS)

    def found_more(self, expired_from: int | None, has_arrived: bool) -> bool:
        """After a claim that was granted nothing and saw these: whether it is worth another try."""
        if expired_from is not None:
            self.expire(LOOK.limit, expired_from)
        if has_arrived:
            self._connections.run(lambda connection: admission.admit_or_wait(self._database, connection))
        if self.watermarks.are_due:
            self._move(self.watermarks.move)
        if self.watermarks.must_be_checked:
            self._move(self.watermarks.check)
            return True
        return has_arrived or expired_from is not None

    def expire(self, limit: int, from_at: int, *, longest_wait_ms: int | None = None) -> list[c.Expiration]:
        """L7. Jobs whose rows somebody has locked are left for the next time; with `longest_wait_ms`, all of them are
        if what their ends concern, their groups, is locked for longer."""

        def work(connection: Connection) -> list[c.Expiration]:
            given = {"from_at": int8(from_at), "limit": int8(limit)}
            try:
                return decide_expired(self._database, connection, c.Expire(limit), given, longest_wait_ms)
            except LockNotAvailable:
                if longest_wait_ms is None:
                    raise
                return []

        position = self._database.expiry_position
        position.looks()  # before it begins: claims beside this one, and after one that fails, do not look as well
        expired = self._connections.run(work)
        if len(expired) == limit:
            position.look_again()
        self.admit_caused()
        if expired:
            self._wake()
        return expired

    def admit(self, count: int = 1) -> None:
        """So many arrivals, at least, if there are. They are durable: an admission that fails, or finds another under
        way, is left to the next claim."""

        def work(connection: Connection) -> None:
            for _ in range(0, count, admission.ADMITTED_AT_ONCE):
                if not admission.admit_now(self._database, connection):
                    return

        try:
            self._connections.run(work)
        except Unavailable as error:
            LOGGER.warning("admission to lanes postponed: %s", error)

    def admit_caused(self) -> None:
        """Jobs that the ends just decided have caused take their places in their lanes."""
        if self._database.has_caused_arrivals:
            self._database.has_caused_arrivals = False
            self.admit()

    def trim(self, leases: Sequence[c.Lease]) -> None:
        """I8: executions beyond those that are kept go. That it failed keeps no claim from returning its leases."""
        nos = int8s([self._database.leases[lease.token].no for lease in leases])
        given = {"nos": nos, "attempts": int8s([lease.attempt for lease in leases])}
        try:
            self._connections.run(lambda connection: self._database.all(connection, "trim", given))
        except Unavailable as error:
            LOGGER.warning("old executions not trimmed: %s", error)

    def _warn(self) -> None:
        """Once: what the server's settings may lose. Who runs a reaper has a log that somebody reads."""
        if self._has_warned:
            return
        self._has_warned = True
        try:
            found = self._connections.run(durability)
        except Unavailable as error:
            LOGGER.warning("the server's settings were not checked: %s", error)
            return
        for sentence in found.warnings():
            LOGGER.warning("%s", sentence)
        for sentence in found.notes():
            LOGGER.info("%s", sentence)

    def _move(self, move: Callable[[Connection], None]) -> None:
        try:
            self._connections.run(move)
        except Unavailable as error:
            LOGGER.warning("watermarks not moved: %s", error)
