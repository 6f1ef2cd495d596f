"""`job.using(connection)`: the store, bound to a connection or session of the caller's.

Enqueue runs on that connection, in the transaction it is in: commit makes the jobs claimable, rollback unmakes them.
Every other verb is the store's own. What must never happen here: to begin, commit, roll back or repeat anything on a
connection that is not ours, or to lock a row there that an ack or another lane needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from leasemill.errors import Invalid, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Block, Store, Watch
from leasemill.store.notifications import Subscription
from leasemill.store.postgres.driver.errors import NO_RIGHTS, UNREADY_CODES, first_line, no_rights
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.steps import RetryTransaction
from leasemill.store.postgres.transactions.adapters import AsyncUserConnection, UserConnection, adapter_of
from leasemill.store.postgres.transactions.adapters.base import sqlstate
from leasemill.store.postgres.transactions.drive import UserSteps, arun_in_session, run_in_session
from leasemill.store.postgres.verbs.enqueue import inserted
from leasemill.store.postgres.waking.notify import Notifier

AnswerT = TypeVar("AnswerT")


class BoundStore(Store):
    """A store whose enqueue joins the caller's transaction. Owns neither the store nor the connection."""

    def __init__(
        self,
        store: Store,
        known: Known,
        statements: Statements,
        notifier: Notifier,
        register: Callable[[Sequence[JobSpec]], None],
        connection: object,
    ) -> None:
        super().__init__(store.entropy)
        self.name = store.name
        self.presence = store.presence
        self.keys = store.keys
        self._store = store
        self._known = known
        self._statements = statements
        self._notifier = notifier
        self._register = register
        self._session = adapter_of(connection)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return self._store.run(command)
        if not isinstance(self._session, UserConnection):
            raise Invalid(f"this is an {self._named()}: write `await job.using(connection).aenqueue(...)`")
        return cast(AnswerT, run_in_session(self._statements, self._session, self._enqueue(command)))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if not isinstance(command, c.Enqueue):
            return await self._store.arun(command)
        if not isinstance(self._session, AsyncUserConnection):
            raise Invalid(f"this {self._named()} would block the event loop: take an async one, or write `enqueue`")
        steps = self._enqueue(command)
        return cast(AnswerT, await arun_in_session(self._statements, self._session, steps, asyncio.to_thread))

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return self._store.block(lease, seconds_left)

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        return self._store.joined_block(lease, session)

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._store.watch(queues)

    def watch_end(self, job_id: str) -> Watch:
        return self._store.watch_end(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._store.watch_cancellations(wake)

    def close(self) -> None:
        """Nothing here is this object's own."""

    def _named(self) -> str:
        return type(self._session.connection).__name__

    def _enqueue(self, command: c.Enqueue) -> UserSteps[list[c.EnqueueOutcome]]:
        check(command)
        if not command.jobs:
            return []
        self._session.check()
        if not self._known.knows_uses(command.jobs):
            yield partial(self._register, command.jobs)
        try:
            return (yield from inserted(command.jobs, self._channel()))
        except RetryTransaction as error:
            raise Unavailable(f"{error}; roll back, and repeat the transaction") from error
        except Exception as error:  # of the caller's driver: classified, or passed on
            meant = self._meaning(error)
            if meant is None:
                raise
            raise meant from error

    def _channel(self) -> str | None:
        """Notified when the caller's transaction commits: PostgreSQL sends the same notification only once.

        Where each statement is a transaction of its own, notifications of many of them are sent together, as for the
        store's own.
        """
        return self._notifier.channel() if self._session.commits_each_statement() else self._known.channel

    def _meaning(self, error: Exception) -> Exception | None:
        """Return the meaning of an error of the caller's driver that is about our tables; others are the caller's."""
        code, schema = sqlstate(error), self._known.schema
        if code == NO_RIGHTS:
            return no_rights(first_line(error), schema)
        if code in UNREADY_CODES:
            return Refused(
                f"the connection's database has no Leasemill tables in the schema {schema!r}, or older ones "
                f"({first_line(error)}): use a connection to the store's own database"
            )
        return None
