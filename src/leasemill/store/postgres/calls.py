"""What a verb is carried out with: the store's connections and statements, and those who wait for its effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.maintenance import PostgresMaintenance
from leasemill.store.postgres.waking.notify import Notifier
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
        self.wake()
        return answer

    def wake(self) -> None:
        """Jobs may have become claimable, for workers of this process and others."""
        self.signal.notify()
        self.notifier.notify()
