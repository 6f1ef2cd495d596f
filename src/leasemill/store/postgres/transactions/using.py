"""`job.using(connection)`: the store, bound to a connection of the caller's.

Enqueue runs on that connection, in the transaction it is in: commit makes the jobs claimable, rollback unmakes them.
Every other verb is the store's own. What must never happen here: to begin, commit, roll back or repeat anything on a
connection that is not ours, or to lock a row there that an ack or another lane needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import psycopg
from psycopg.errors import InsufficientPrivilege
from psycopg.pq import TransactionStatus

from leasemill.errors import Invalid, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Store, Watch
from leasemill.store.block import Block
from leasemill.store.ends import Subscription
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.steps import Steps, afollow, follow
from leasemill.store.postgres.verbs.enqueue import inserting
from leasemill.store.postgres.waking.notify import Notifier
from leasemill.store.postgres.wire.connections import Moved
from leasemill.store.postgres.wire.errors import UNREADY, first_line, meaning

AnswerT = TypeVar("AnswerT")
UserConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class BoundStore(Store):
    """A store whose enqueue joins the caller's transaction. Owns neither the store nor the connection."""

    def __init__(
        self,
        store: Store,
        database: Database,
        notifier: Notifier,
        register: Callable[[Sequence[JobSpec]], None],
        connection: object,
    ) -> None:
        super().__init__(store.entropy)
        self.name = store.name
        self.presence = store.presence
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise Invalid(
                f"using() takes a psycopg.Connection or psycopg.AsyncConnection, not a {type(connection).__name__}: "
                "hand over the driver's own connection"
            )
        self._store = store
        self._database = database
        self._notifier = notifier
        self._register = register
        self._connection: UserConnection = connection

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return self._store.run(command)
        connection = self._connection
        if not isinstance(connection, psycopg.Connection):
            raise Invalid("this is an AsyncConnection: write `await job.using(connection).aenqueue(...)`")
        return cast(AnswerT, follow(self._database, connection, self._enqueue(command)))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return await self._store.arun(command)
        connection = self._connection
        if not isinstance(connection, psycopg.AsyncConnection):
            raise Invalid(
                "this connection would block the event loop: take a psycopg.AsyncConnection, or write `enqueue`"
            )
        return cast(AnswerT, await afollow(self._database, connection, self._enqueue(command), asyncio.to_thread))

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return self._store.block(lease, seconds_left)

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._store.watch(queues)

    def watch_end(self, job_id: str) -> Watch:
        return self._store.watch_end(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._store.watch_cancellations(wake)

    def close(self) -> None:
        """Nothing here is this object's own."""

    def _enqueue(self, command: c.Enqueue) -> Steps[list[c.EnqueueOutcome]]:
        check(command)
        if not command.jobs:
            return []
        encoding = self._connection.info.encoding
        if encoding != "utf-8":
            raise Invalid(f"the connection's client_encoding is {encoding}: connect with client_encoding=utf8")
        if not self._database.knows_uses(command.jobs):
            yield partial(self._register, command.jobs)
        try:
            return (yield from inserting(command.jobs, self._channel()))
        except (Moved, InsufficientPrivilege, *UNREADY) as error:
            raise self._meaning(error) from error

    def _channel(self) -> str | None:
        """Notified when the caller's transaction commits: PostgreSQL sends the same notification only once.

        An autocommit connection outside a transaction commits with the statement: notifications of many of them are
        sent together, as for the store's own.
        """
        connection = self._connection
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            return self._notifier.channel()
        return self._database.channel

    def _meaning(self, error: Exception) -> Exception:
        if isinstance(error, Moved):
            return Unavailable(f"{error}; roll back, and repeat the transaction")
        schema = self._database.statements.schema
        if isinstance(error, InsufficientPrivilege):
            return meaning(error, schema)
        return Refused(
            f"the connection's database has no Leasemill tables in the schema {schema!r}, or older ones "
            f"({first_line(error)}): use a connection to the store's own database"
        )
