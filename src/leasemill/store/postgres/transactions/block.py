"""`ctx.commit()` on PostgreSQL: the user's writes, the marker, the result and the follow-ups are one transaction.

The guard is the last statement before COMMIT: until then nothing of ours is locked, however slow the block. A refusal
is written on a connection of the store's own, so it outlives the rollback. If the connection is lost around COMMIT, the
store is asked how it ended. What must never happen here: a marker without the user's writes, or a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from leasemill.errors import GroupRefused, Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.kernel.verbs.commit import followup_specs
from leasemill.store.base import Block
from leasemill.store.postgres.driver.commit_connections import (
    AsyncCommitConnection,
    CommitConnection,
    CommitConnections,
)
from leasemill.store.postgres.driver.connections import NOT_PREPARED
from leasemill.store.postgres.driver.errors import is_lost, not_reached
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.steps import RetryTransaction
from leasemill.store.postgres.transactions.drive import UserSteps, arun_in_block, run_in_block
from leasemill.store.postgres.transactions.messages import ENDED_INSIDE, Messages, ended_inside, is_not_held, is_reset
from leasemill.store.postgres.verbs import enqueue

LONGEST_IDLE_MS: Final = 2_000_000_000
SHORTEST_IDLE_MS: Final = 1_000

ResultT = TypeVar("ResultT")


class StorePort(Protocol):
    """The parts of the store that a block needs for the store's own connections."""

    def look(self, lease: c.LeaseRef) -> c.CommitOutcome | None:
        """None: the lease is held."""

    def settle(self, command: c.Commit) -> c.CommitOutcome | None:
        """How a commit ended, a refusal being recorded; None: it did not happen, and the lease is held."""

    def use_queues(self, jobs: Sequence[JobSpec]) -> None: ...

    def wake(self) -> None: ...

    async def off_loop(self, call: Callable[..., ResultT], *arguments: Any) -> ResultT: ...


class PostgresBlock(Block):
    """One commit with a transaction of the user's, in a sync or in an async handler."""

    def __init__(
        self,
        own: StorePort,
        known: Known,
        statements: Statements,
        connections: CommitConnections,
        messages: Messages,
        lease: c.Lease,
        seconds_left: float,
    ) -> None:
        self._own = own
        self._known = known
        self._statements = statements
        self._connections = connections
        self._messages = messages
        self._lease = c.LeaseRef(lease.job.id, lease.token)
        self._idle_ms = int(min(LONGEST_IDLE_MS, max(SHORTEST_IDLE_MS, seconds_left * 1_000)))
        self._connection: CommitConnection | AsyncCommitConnection | None = None
        self._must_ask = False

    @property
    def connection(self) -> CommitConnection | AsyncCommitConnection:
        if self._connection is None:
            raise Invalid("this commit is not open: use it inside its `with` or `async with` block")
        return self._connection

    # In sync handlers

    def begin(self) -> c.CommitOutcome | None:
        self._connection = self._connections.take()
        return self._follow(self._begin())

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        return self._follow(self._commit(command))

    def roll_back(self) -> None:
        self._follow(self._roll_back())

    def _follow(self, steps: UserSteps[ResultT]) -> ResultT:
        return run_in_block(self._statements, cast(CommitConnection, self._connection), steps)

    # In async handlers

    async def abegin(self) -> c.CommitOutcome | None:
        self._connection = await self._connections.atake()
        return await self._afollow(self._begin())

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        return await self._afollow(self._commit(command))

    async def aroll_back(self) -> None:
        await self._afollow(self._roll_back())

    async def _afollow(self, steps: UserSteps[ResultT]) -> ResultT:
        connection = cast(AsyncCommitConnection, self._connection)
        return await arun_in_block(self._statements, connection, steps, self._own.off_loop)

    # In both

    def _begin(self) -> UserSteps[c.CommitOutcome | None]:
        connection = self.connection
        connection.is_reset = False
        try:
            status = yield self._messages.begin(connection, self._lease, self._idle_ms)
        except psycopg.Error as error:
            was_lost = is_lost(error, connection)
            connection.pgconn.finish()  # whatever of the message was carried out is gone with its session
            yield from self._roll_back()
            if was_lost:
                raise not_reached(error) from error
            raise
        if status == "held":
            return None
        yield from self._roll_back()
        refused = c.Commit(self._lease.job_id, self._lease.token)  # and recorded
        outcome: c.CommitOutcome | None = yield partial(self._own.settle, refused)
        if outcome is None:
            raise Unavailable("the lease could not be looked at; repeat the call")
        return outcome

    def _commit(self, command: c.Commit) -> UserSteps[c.CommitOutcome | None]:
        outcome: c.CommitOutcome | None = None
        if not self._must_ask:
            outcome = yield from self._send(command)
        if outcome is None:
            outcome = yield partial(self._own.settle, command)
        return outcome

    def _send(self, command: c.Commit) -> UserSteps[c.CommitOutcome | None]:
        """None: not held, or the connection was lost; the store knows."""
        check(command)
        connection = self.connection
        if connection.info.transaction_status == TransactionStatus.IDLE:
            raise ended_inside()
        specs = followup_specs(command)
        if not self._known.knows_uses(specs):
            yield partial(self._own.use_queues, specs)
        outcome: c.CommitOutcome | None = None
        try:
            enqueued = (yield from self._enqueue(specs, command.job_id)) if specs else []
            outcome = next((one for one in enqueued if isinstance(one, c.Conflict)), None)
            if outcome is None:
                connection.is_reset = is_reset((yield self._messages.end(connection, command)))
                outcome = c.Committed(command.job_id, tuple(one.job_id for one in enqueued))
                self._own.wake()
        except NOT_PREPARED:
            self._connections.do_not_prepare()
            raise
        except GroupRefused:
            yield from self._roll_back()  # B5: as X6, and the error says why
            raise
        except psycopg.Error as error:
            if error.sqlstate == ENDED_INSIDE:
                raise ended_inside() from error
            if not (is_lost(error, connection) or is_not_held(error)):
                raise
            self._must_ask = True
        yield from self._roll_back()
        return outcome

    def _enqueue(self, specs: Sequence[JobSpec], job_id: str) -> UserSteps[list[c.EnqueueOutcome]]:
        """The follow-ups, in the user's transaction; a conflict refuses the whole commit (X6)."""
        try:
            return (yield from enqueue.inserted(specs, self._known.channel, by=job_id))
        except RetryTransaction as error:
            raise Unavailable(f"{error}; repeat the call") from error

    def _roll_back(self) -> UserSteps[None]:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.is_reset = is_reset((yield self._messages.roll_back()))
        except psycopg.Error:
            connection.pgconn.finish()
        finally:
            self._connections.give_back(connection)
