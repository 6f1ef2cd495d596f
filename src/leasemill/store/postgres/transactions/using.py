"""`job.using(connection)`: the store, bound to a connection of the caller's.

Enqueue runs on that connection, in the transaction it is in: commit makes the jobs claimable, rollback unmakes them.
Every other verb is the store's own. What must never happen here: to begin, commit, roll back or repeat anything on a
connection that is not ours, or to lock a row there that an ack or another lane needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from leasemill.store.postgres.verbs.enqueue import inserting
from leasemill.store.postgres.wire.connections import Moved
from leasemill.store.postgres.wire.errors import UNREADY, first_line, meaning
from leasemill.store.postgres.wire.listen import Teller

AnswerT = TypeVar("AnswerT")
UserConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class BoundStore(Store):
    """A store whose enqueue joins the caller's transaction. Owns neither the store nor the connection."""

    def __init__(
        self,
        store: Store,
        database: Database,
        teller: Teller,
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
        self._teller = teller
        self._register = register
        self._connection: UserConnection = connection

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return self._store.run(command)
        connection = self._connection
        if not isinstance(connection, psycopg.Connection):
            raise Invalid("this is an AsyncConnection: write `await job.using(connection).aenqueue(...)`")
        if not self._checked(command):
            return cast(AnswerT, [])
        self._register(command.jobs)
        try:
            return cast(AnswerT, self._database.follow(connection, inserting(command.jobs, self._channel())))
        except (Moved, InsufficientPrivilege, *UNREADY) as error:
            raise self._told(error) from error

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return await self._store.arun(command)
        connection = self._connection
        if not isinstance(connection, psycopg.AsyncConnection):
            raise Invalid(
                "this connection would block the event loop: take a psycopg.AsyncConnection, or write `enqueue`"
            )
        if not self._checked(command):
            return cast(AnswerT, [])
        if not self._database.claim_queues.issuperset(job.queue for job in command.jobs):
            await asyncio.to_thread(self._register, command.jobs)
        try:
            return cast(AnswerT, await self._database.afollow(connection, inserting(command.jobs, self._channel())))
        except (Moved, InsufficientPrivilege, *UNREADY) as error:
            raise self._told(error) from error

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

    def _checked(self, command: c.Enqueue) -> bool:
        """Refuses what cannot be sent; False: there is nothing to send."""
        check(command)
        if not command.jobs:
            return False
        encoding = self._connection.info.encoding
        if encoding != "utf-8":
            raise Invalid(f"the connection's client_encoding is {encoding}: connect with client_encoding=utf8")
        return True

    def _channel(self) -> str | None:
        """Told with the caller's transaction, when it commits: PostgreSQL tells one that says it often only once.

        An autocommit connection outside a transaction commits with the statement: what many of them would tell is told
        together, as for the store's own.
        """
        connection = self._connection
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            return self._teller.channel()
        return self._database.channel

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, Moved):
            return Unavailable(f"{error}; roll back, and repeat the transaction")
        schema = self._database.statements.schema
        if isinstance(error, InsufficientPrivilege):
            return meaning(error, schema)
        return Refused(
            f"the connection's database has no Leasemill tables in the schema {schema!r}, or older ones "
            f"({first_line(error)}): use a connection to the store's own database"
        )
