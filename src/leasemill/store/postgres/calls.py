"""What a verb is carried out with: the store's connections and statements, and those who wait for its effects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.maintenance import PostgresMaintenance
from leasemill.store.postgres.waking.notify import Notifier
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.connections import Connection, Connections
from leasemill.store.signal import Signal

AnswerT = TypeVar("AnswerT")


class Calls(NamedTuple):
    """Of one store."""

    connections: Connections
    database: Database
    maintenance: PostgresMaintenance
    signal: Signal
    notifier: Notifier

    def read(self, reading: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
        return self.connections.run(lambda connection: reading(self.database, connection, *arguments))

    def decide(self, command: c.Command[AnswerT], concern: Concern) -> AnswerT:
        """On the exact path."""

        def work(connection: Connection) -> AnswerT:
            return decide(self.database, connection, command, concern)

        answer = self.connections.run(work)
        self.follow_decision()
        return answer

    def follow_decision(self) -> None:
        """Jobs that it caused take their places in their lanes; who waits for a job is notified if there may be one."""
        if self.database.has_caused_arrivals:
            self.maintenance.admit_caused()
        if self.database.has_moved_jobs:
            self.database.has_moved_jobs = False
            self.wake()

    def free_places(self, names: Collection[str]) -> None:
        """Leases under these limits have ended (T3): queues where jobs wait for a place are notified."""
        channel = self.notifier.channel() if names else None
        if channel is not None:
            given = {"channel": channel, "names": texts(sorted(names))}
            with suppress(Unavailable):  # who waits looks again within a second
                self.connections.run(lambda connection: self.database.all(connection, "notify_places", given))

    def wake(self) -> None:
        """Jobs may have become claimable, for workers of this process and others."""
        self.signal.notify()
        self.notifier.notify()
