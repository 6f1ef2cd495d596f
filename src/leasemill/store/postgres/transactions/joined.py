"""`ctx.commit(session)`: the commit joins the transaction of a connection or session of the user's.

On leaving the block: flush, the follow-ups, the guard, COMMIT, each the way the user's framework does it. The guard is
carried out by COMMIT itself (`guard`, docs/postgres.md): whatever the framework still sends before it is guarded too,
and nothing of ours is locked before. What must never happen here: a marker without the user's writes, or a guess.
"""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import Any, TypeVar

from leasemill.errors import Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.verbs.commit import followup_specs
from leasemill.store.base import Block
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.steps import RetryTransaction, rows
from leasemill.store.postgres.transactions.adapters import AsyncUserConnection, UserConnection, adapter_of
from leasemill.store.postgres.transactions.adapters.base import may_be_of_the_lease, may_have_happened, sqlstate
from leasemill.store.postgres.transactions.block import StorePort
from leasemill.store.postgres.transactions.drive import SessionStep, UserSteps, arun_in_session, run_in_session
from leasemill.store.postgres.transactions.messages import ENDED_INSIDE, ended_inside
from leasemill.store.postgres.verbs import enqueue

ResultT = TypeVar("ResultT")


class JoinedBlock(Block):
    """One commit in a transaction of the user's own session, in a sync or in an async handler."""

    def __init__(self, own: StorePort, known: Known, statements: Statements, lease: c.Lease, session: object) -> None:
        self._own = own
        self._known = known
        self._statements = statements
        self._session = adapter_of(session)
        self._lease = c.LeaseRef(lease.job.id, lease.token)
        self._block = token_hex(8) if self._session.is_marked else None
        self._is_over = True
        """Nothing is left to roll back."""
        self._unknown: Exception | None = None
        """The error of a COMMIT that may have been carried out all the same."""

    @property
    def connection(self) -> Any:
        return self._session.connection

    # In sync handlers

    def begin(self) -> c.CommitOutcome | None:
        return self._run(self._begin())

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        return self._run(self._commit(command))

    def roll_back(self) -> None:
        self._run(self._roll_back())

    def _run(self, steps: UserSteps[ResultT]) -> ResultT:
        if not isinstance(self._session, UserConnection):
            raise Invalid(f"this is an {type(self.connection).__name__}: write `async with ctx.commit(session) as tx`")
        return run_in_session(self._statements, self._session, steps)

    # In async handlers

    async def abegin(self) -> c.CommitOutcome | None:
        return await self._arun(self._begin())

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        return await self._arun(self._commit(command))

    async def aroll_back(self) -> None:
        await self._arun(self._roll_back())

    async def _arun(self, steps: UserSteps[ResultT]) -> ResultT:
        if not isinstance(self._session, AsyncUserConnection):
            raise Invalid(
                f"this {type(self.connection).__name__} would block the event loop: take an async one, or write the "
                "handler as `def`"
            )
        return await arun_in_session(self._statements, self._session, steps, self._own.off_loop)

    # In both

    def _begin(self) -> UserSteps[c.CommitOutcome | None]:
        self._session.check()
        outcome: c.CommitOutcome | None = yield partial(self._own.look, self._lease)
        if outcome is None:
            self._is_over = False
            yield SessionStep.BEGIN
            if self._block is not None:
                yield from rows("mark_block", {"block": self._block})
        return outcome

    def _commit(self, command: c.Commit) -> UserSteps[c.CommitOutcome | None]:
        outcome: c.CommitOutcome | None = None
        if self._unknown is None:
            outcome = yield from self._send(command)
        if outcome is None:
            outcome = yield partial(self._own.settle, command)
            if outcome is None and self._unknown is not None:
                raise self._unknown
        return outcome

    def _send(self, command: c.Commit) -> UserSteps[c.CommitOutcome | None]:
        """None: not held, or it is not known whether COMMIT was carried out; the store knows."""
        check(command)
        if not self._session.is_open():
            raise ended_inside()
        specs = followup_specs(command)
        if not self._known.knows_uses(specs):
            yield partial(self._own.use_queues, specs)
        yield SessionStep.FLUSH
        outcome: c.CommitOutcome | None = None
        is_sent = False
        try:
            enqueued: list[c.EnqueueOutcome] = []
            if specs:
                enqueued = yield from enqueue.inserted(specs, self._known.channel, by=command.job_id)
            outcome = next((one for one in enqueued if isinstance(one, c.Conflict)), None)
            if outcome is None:
                lease = {"id": command.job_id, "token": command.token, "block": self._block}
                yield from rows("guard", {**lease, "result": _text(command.result)})
                is_sent = True
                yield SessionStep.COMMIT
                self._is_over = True
                outcome = c.Committed(command.job_id, tuple(one.job_id for one in enqueued))
                self._own.wake()
        except RetryTransaction as error:
            raise Unavailable(f"{error}; repeat the call") from error
        except Exception as error:  # of the driver or the framework: classified, or passed on
            if sqlstate(error) == ENDED_INSIDE:
                raise ended_inside() from error
            if not (may_be_of_the_lease(error) or (is_sent and may_have_happened(error))):
                raise
            self._unknown = error
        yield from self._roll_back()
        return outcome

    def _roll_back(self) -> UserSteps[None]:
        if not self._is_over:
            self._is_over = True
            yield SessionStep.ROLL_BACK


def _text(result: bytes | None) -> str | None:
    return None if result is None else result.decode()
