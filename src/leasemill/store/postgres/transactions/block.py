"""`ctx.commit()` on PostgreSQL: the user's writes, the marker, the result and the follow-ups are one transaction.

The guard is the last statement before COMMIT: until then nothing of ours is locked, however slow the block. A refusal
is written on a connection of the store's own, so it outlives the rollback. If the connection is lost around COMMIT, the
store is asked what became of it. What must never happen here: a marker without the user's writes, or a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from leasemill.errors import Invalid, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.store.block import Block
from leasemill.store.postgres.database import Database, Steps
from leasemill.store.postgres.transactions.messages import Messages, is_as_before, is_not_held
from leasemill.store.postgres.verbs import commit, enqueue
from leasemill.store.postgres.wire.commit_connections import (
    AsyncCommitConnection,
    CommitConnection,
    CommitPool,
    is_lost,
)
from leasemill.store.postgres.wire.connections import LOGGER, NOT_PREPARED, Moved
from leasemill.store.postgres.wire.cursors import asay, say
from leasemill.store.postgres.wire.errors import not_reached

LONGEST_IDLE_MS: Final = 2_000_000_000
SHORTEST_IDLE_MS: Final = 1_000
NOT_OPEN: Final = "this commit is not open: use it inside its `with` or `async with` block"

AnswerT = TypeVar("AnswerT")


class Own(Protocol):
    """What a block needs of the store's own connections."""

    def settle(self, command: c.Commit) -> c.CommitOutcome | None:
        """How a commit ended, a refusal being recorded; None: it did not happen, and the lease is held."""

    def use_queues(self, jobs: Sequence[JobSpec]) -> None: ...

    def wake(self) -> None: ...

    async def off_loop(self, call: Callable[..., AnswerT], *arguments: Any) -> AnswerT: ...


class PostgresBlock(Block):
    """One commit with a transaction of the user's, in a sync or in an async handler."""

    def __init__(
        self, own: Own, database: Database, pool: CommitPool, messages: Messages, lease: c.Lease, seconds_left: float
    ) -> None:
        self._own = own
        self._database = database
        self._pool = pool
        self._messages = messages
        self._lease = c.LeaseRef(lease.job.id, lease.token)
        self._idle_ms = int(min(LONGEST_IDLE_MS, max(SHORTEST_IDLE_MS, seconds_left * 1_000)))
        self._sync: CommitConnection | None = None
        self._async: AsyncCommitConnection | None = None
        self._must_ask = False

    @property
    def connection(self) -> CommitConnection | AsyncCommitConnection:
        connection = self._sync or self._async
        if connection is None:
            raise Invalid(NOT_OPEN)
        return connection

    # In sync handlers

    def begin(self) -> c.CommitOutcome | None:
        connection = self._sync = self._pool.take()
        try:
            status = self._looked(connection)
        except psycopg.Error as error:
            was_lost = is_lost(error, connection)
            connection.pgconn.finish()  # whatever of the message was carried out is gone with its session
            self.roll_back()
            if was_lost:
                raise not_reached(error) from error
            raise
        if _is_held(status):
            return None
        self.roll_back()
        return self._own.settle(self._nothing()) or _held_after_all()

    def _looked(self, connection: CommitConnection) -> str | None:
        try:
            return say(connection, self._beginning(connection))
        except NOT_PREPARED:
            say(connection, b"rollback")
            self._do_without_prepared(connection)
            return say(connection, self._beginning(connection))

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        return (None if self._must_ask else self._committed(command)) or self._own.settle(command)

    def _committed(self, command: c.Commit) -> c.CommitOutcome | None:
        """None: not held, or the connection was lost; the store knows."""
        connection = self._sync
        specs = _checked(connection, command)
        self._own.use_queues(specs)
        assert connection is not None
        try:
            outcome: c.CommitOutcome | None = None
            if specs:
                outcome = self._database.follow(connection, self._followup_steps(specs))
            if outcome is None:
                connection.is_as_before = is_as_before(say(connection, self._ending(connection, command)))
                outcome = c.Committed(command.job_id, tuple(spec.id for spec in specs))
                self._own.wake()
        except psycopg.Error as error:
            if not (is_lost(error, connection) or is_not_held(error)):
                raise
            self._must_ask = True
            outcome = None
        self.roll_back()
        return outcome

    def roll_back(self) -> None:
        connection, self._sync = self._sync, None
        if connection is None:
            return
        try:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.is_as_before = is_as_before(say(connection, self._undoing(connection)))
        except psycopg.Error:
            connection.close()
        finally:
            self._pool.give_back(connection)

    # In async handlers

    async def abegin(self) -> c.CommitOutcome | None:
        connection = self._async = await self._pool.atake()
        try:
            status = await self._alooked(connection)
        except psycopg.Error as error:
            was_lost = is_lost(error, connection)
            connection.pgconn.finish()  # whatever of the message was carried out is gone with its session
            await self.aroll_back()
            if was_lost:
                raise not_reached(error) from error
            raise
        if _is_held(status):
            return None
        await self.aroll_back()
        return await self._own.off_loop(self._own.settle, self._nothing()) or _held_after_all()

    async def _alooked(self, connection: AsyncCommitConnection) -> str | None:
        try:
            return await asay(connection, self._beginning(connection))
        except NOT_PREPARED:
            await asay(connection, b"rollback")
            self._do_without_prepared(connection)
            return await asay(connection, self._beginning(connection))

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        outcome = None if self._must_ask else await self._acommitted(command)
        return outcome or await self._own.off_loop(self._own.settle, command)

    async def _acommitted(self, command: c.Commit) -> c.CommitOutcome | None:
        """None: not held, or the connection was lost; the store knows."""
        connection = self._async
        specs = _checked(connection, command)
        if not self._database.claim_queues.issuperset(spec.queue for spec in specs):
            await self._own.off_loop(self._own.use_queues, specs)
        assert connection is not None
        try:
            outcome: c.CommitOutcome | None = None
            if specs:
                outcome = await self._database.afollow(connection, self._followup_steps(specs))
            if outcome is None:
                connection.is_as_before = is_as_before(await asay(connection, self._ending(connection, command)))
                outcome = c.Committed(command.job_id, tuple(spec.id for spec in specs))
                self._own.wake()
        except psycopg.Error as error:
            if not (is_lost(error, connection) or is_not_held(error)):
                raise
            self._must_ask = True
            outcome = None
        await self.aroll_back()
        return outcome

    async def aroll_back(self) -> None:
        connection, self._async = self._async, None
        if connection is None:
            return
        try:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.is_as_before = is_as_before(await asay(connection, self._undoing(connection)))
        except psycopg.Error:
            connection.pgconn.finish()
        finally:
            self._pool.agive_back(connection)

    # In both

    def _beginning(self, connection: CommitConnection | AsyncCommitConnection) -> bytes:
        connection.is_as_before = False
        prepares, connection.has_prepared = self._pool.prepares and not connection.has_prepared, self._pool.prepares
        return self._messages.begin(
            connection, self._lease, self._idle_ms, prepares=prepares, is_prepared=connection.has_prepared
        )

    def _ending(self, connection: CommitConnection | AsyncCommitConnection, command: c.Commit) -> bytes:
        return self._messages.end(connection, command, is_prepared=connection.has_prepared)

    def _undoing(self, connection: CommitConnection | AsyncCommitConnection) -> bytes:
        return self._messages.roll_back(is_prepared=connection.has_prepared)

    def _do_without_prepared(self, connection: CommitConnection | AsyncCommitConnection) -> None:
        LOGGER.info("prepared statements do not last here (a pooler?): going on without")
        self._pool.prepares = False
        connection.has_prepared = False
        connection.prepare_threshold = None

    def _nothing(self) -> c.Commit:
        """The commit of a lease that is lost: never carried out, only refused."""
        return c.Commit(self._lease.job_id, self._lease.token)

    def _followup_steps(self, specs: Sequence[JobSpec]) -> Steps[c.Conflict | None]:
        """The follow-ups, in the user's transaction; or the one that refuses the whole commit (X6)."""
        try:
            outcomes = yield from enqueue.inserting(specs, self._database.channel)
        except Moved as error:
            raise Unavailable(f"{error}; repeat the call") from error
        return next((outcome for outcome in outcomes if isinstance(outcome, c.Conflict)), None)


def _is_held(status: str | None) -> bool:
    return status == "held"


def _checked(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None, command: c.Commit
) -> list[JobSpec]:
    """The follow-ups as jobs, of a commit that can be sent."""
    check(command)
    if connection is None:
        raise Invalid(NOT_OPEN)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise Refused(
            "the transaction of ctx.commit() was ended inside its block, so this commit is refused: "
            "leave commit and rollback to the block"
        )
    return commit.followup_specs(command)


def _held_after_all() -> c.CommitOutcome:
    raise Unavailable("the lease could not be looked at; repeat the call")
