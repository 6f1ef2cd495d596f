"""`postgresql://` the Store on PostgreSQL: opened and closed here, and which verb a command is.

Common verbs take the fast path (`verbs`), one statement for a batch; what that leaves over, and everything rare, is
decided by the kernel under locks (`exact`). Outcomes are returned after COMMIT. Adds no rule of queueing of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Store, Watch
from leasemill.store.block import Block
from leasemill.store.ends import Subscription
from leasemill.store.forks import start_over_in_children
from leasemill.store.postgres import reading
from leasemill.store.postgres import schedules as scheduled
from leasemill.store.postgres.admin.migrate import require
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.enqueues import Enqueues
from leasemill.store.postgres.exact.decide import decide
from leasemill.store.postgres.keys import PostgresKeys
from leasemill.store.postgres.limits import operate as operate_limits
from leasemill.store.postgres.limits import views
from leasemill.store.postgres.maintenance import PostgresMaintenance
from leasemill.store.postgres.presence import PostgresPresence, get_order
from leasemill.store.postgres.transactions.block import PostgresBlock
from leasemill.store.postgres.transactions.joined import JoinedBlock
from leasemill.store.postgres.transactions.messages import Messages
from leasemill.store.postgres.transactions.using import BoundStore
from leasemill.store.postgres.verbs import (
    ack,
    acquire,
    claim,
    commit,
    death,
    enqueue,
    expire,
    extend,
    group,
    handover,
    nack,
    operate,
    orders,
    release,
    schedules,
    start,
)
from leasemill.store.postgres.verbs.acquire import after_ack
from leasemill.store.postgres.verbs.inserting import inserting_caused
from leasemill.store.postgres.waking.listen import Listener
from leasemill.store.postgres.waking.notify import Notifier
from leasemill.store.postgres.waking.watch import PostgresEndWatch, PostgresWatch
from leasemill.store.postgres.wire.commit_connections import CommitConnections
from leasemill.store.postgres.wire.connections import Connection, Connections, Moved
from leasemill.store.postgres.wire.looped import LoopMessages
from leasemill.store.postgres.wire.pool import store_closed
from leasemill.store.postgres.wire.statements import Statements
from leasemill.store.postgres.wire.url import PostgresOptions, parse_url
from leasemill.store.reading import Pulse
from leasemill.store.signal import Signal
from leasemill.store.sources import Clock, Entropy
from leasemill.store.threads import Threads
from leasemill.store.url import hidden_password

AnswerT = TypeVar("AnswerT")

CLOSE_S: Final = 1.0
"""How long closing waits for calls under way: a server that is silent keeps no process from ending."""


class PostgresStore(Store):
    """A database's jobs. Threads and event loops may share one object."""

    def __init__(self, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> None:
        super().__init__(entropy, has_test_clock=clock is not None)
        self.name = hidden_password(url)
        self.own_url = url
        conninfo, self._options = parse_url(url)
        self._pool = Connections(conninfo, self._options)
        self._commits = CommitConnections(conninfo, self._options, self._pool)
        self._database = Database(Statements(self._options.schema), clock, self.expiries)
        self._messages = Messages(self._database)
        self.presence = PostgresPresence(self._pool, self._database)
        self.keys = PostgresKeys(self._pool, self._database)
        self._signal = Signal()
        self._notifier = Notifier(self._database.channel, self._notify)
        self._listener = Listener(self._pool.connect, self._database, self._signal, is_enabled=self._options.listen)
        self._database.insert_caused = lambda jobs: inserting_caused(jobs, self._notifier.channel())
        self._threads = Threads(self._options.pool_size, "leasemill-postgres")
        self._maintenance = PostgresMaintenance(self._pool, self._database, self._options, self._wake)
        self._calls = Calls(self._pool, self._database, self._maintenance, self._signal, self._notifier)
        self._loop_messages = LoopMessages(self._pool)
        self._enqueues = Enqueues(self._calls, self._loop_messages, self._threads, self.off_loop)
        self._is_closed = False
        start_over_in_children(self)
        try:
            self._pool.run(
                lambda connection: require(connection, self._options.schema, auto_migrate=self._options.auto_migrate)
            )
        except BaseException:
            self.close()
            raise

    @property
    def options(self) -> PostgresOptions:
        return self._options

    # The store's methods

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        self._check_open()
        if isinstance(command, c.Enqueue):
            return cast(AnswerT, self._enqueues.run(command))
        return cast(AnswerT, _VERBS[type(command)](self._calls, command))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        self._check_open()
        if isinstance(command, c.Enqueue):
            check(command)
            return cast(AnswerT, await self._enqueues.arun(command))
        looped = _LOOPED_VERBS.get(type(command))
        if looped is None:
            return await self.off_loop(self.run, command)
        check(command)
        answer = await looped(self._calls, self._loop_messages, command)
        return cast(AnswerT, await self.off_loop(answer) if callable(answer) else answer)

    def pulse(self) -> Pulse:
        self._check_open()
        return self._calls.read(reading.pulse)

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        """In one transaction, if nothing is special."""
        check(ack)
        check(claim)
        self._check_open()
        answer = await handover.arun(self._calls, self._loop_messages, ack, claim)
        return answer if isinstance(answer, tuple) else await self.off_loop(answer)

    def ack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        """In one transaction."""
        check(c.Ack([ack]))
        check(c.Acquire([acquire]))
        self._check_open()
        return after_ack(self._calls, ack, acquire)

    async def aack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        return await self.off_loop(self.ack_then_acquire, ack, acquire)

    def watch(self, queues: Sequence[str]) -> Watch:
        self._listener.start()
        return PostgresWatch(self, self._signal, self._listener, queues)

    def watch_end(self, job_id: str) -> Watch:
        self._listener.start()
        return PostgresEndWatch(self._listener.ends.watch(job_id), self._listener)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        self._listener.start()
        return self._listener.cancellations.call(wake)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        until_s = time.monotonic() + CLOSE_S
        self._maintenance.forgetting.stop()
        self._notifier.stop()
        self._listener.stop()
        self._threads.close()
        self._loop_messages.finish(CLOSE_S)
        self._pool.close(CLOSE_S)
        self._loop_messages.give_up()
        self._commits.close()
        self._signal.notify()
        self._listener.ends.notify_all()
        self._maintenance.forgetting.join(until_s)
        self._threads.join(until_s)
        self._notifier.join(until_s)
        self._listener.join(until_s)

    def after_fork(self) -> None:
        """A child has its own connections, locks and callers."""
        self._pool.after_fork()
        self._commits.after_fork()
        self._database.positions.after_fork()
        self._signal.reset()
        self._notifier.after_fork()
        self._listener.after_fork()
        self._maintenance.after_fork()
        self._loop_messages.after_fork()
        self._enqueues.after_fork()

    def using(self, connection: object) -> BoundStore:
        return BoundStore(self, self._database, self._notifier, self.use_queues, connection)

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return PostgresBlock(self, self._database, self._commits, self._messages, lease, seconds_left)

    def joined_block(self, lease: c.Lease, session: object) -> JoinedBlock:
        return JoinedBlock(self, self._database, lease, session)

    # For transactions of users, on connections of our own

    def use_queues(self, jobs: Sequence[JobSpec]) -> None:
        """I7, on a connection of our own: a caller's transaction, however long, locks no queue."""
        if self._database.knows_uses(jobs):
            return

        def work(connection: Connection) -> None:
            with connection.transaction():
                names = enqueue.check_enqueue_queues(self._database, connection, jobs)
                enqueue.fix_uses(self._database, connection, names, jobs)

        self._pool.run(work)
        self._database.learn_uses(jobs)

    def look(self, lease: c.LeaseRef) -> c.CommitOutcome | None:
        """Whether a lease is held, before a block runs. An answer: it is not, and the refusal is recorded."""
        given = {"id": lease.job_id, "token": lease.token}
        (status,) = self._pool.run(lambda connection: self._database.one(connection, "lease_status", given))
        return None if status == "held" else self.settle(c.Commit(lease.job_id, lease.token))

    def settle(self, command: c.Commit) -> c.CommitOutcome | None:
        """How a commit sent elsewhere ended, waiting for one under way. None: it did not happen, the lease is held."""

        def work(connection: Connection) -> c.CommitOutcome | None:
            try:
                return decide(self._database, connection, command, commit.concern_of(command))
            except Moved:
                return None

        return self._pool.run(work)

    def wake(self) -> None:
        self._signal.notify()

    async def off_loop(self, call: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
        future = self._threads.submit(call, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_closed or task is None or task.cancelling():
                raise
            raise store_closed() from None  # it had not begun

    def _check_open(self) -> None:
        if self._is_closed:
            raise store_closed()

    def _wake(self) -> None:
        self._calls.wake()

    def _notify(self) -> None:
        channel = self._database.channel
        self._pool.run(lambda connection: connection.execute("select pg_notify(%s, '')", [channel]))


_LOOPED_VERBS: Final[dict[type, Callable[[Calls, LoopMessages, Any], Awaitable[Any]]]] = {
    c.Claim: claim.arun,
    c.Ack: ack.arun,
}
"""What the event loop sends itself: a worker's threads would wait for the interpreter's lock, its handlers have it."""
_VERBS: Final[dict[type, Callable[[Calls, Any], Any]]] = {
    c.Claim: claim.run,
    c.Start: start.run,
    c.Extend: extend.run,
    c.Commit: commit.run,
    c.Ack: ack.run,
    c.Nack: nack.run,
    c.Release: release.run,
    c.Expire: expire.run,
    c.Death: death.run,
    c.Acquire: acquire.run,
    c.Cancel: operate.cancel,
    c.Redrive: operate.redrive,
    c.Purge: operate.purge,
    c.CreateGroup: group.create,
    c.SealGroup: group.seal,
    c.CancelGroup: group.cancel,
    c.Pause: operate.change_queue,
    c.Resume: operate.change_queue,
    c.SetPolicy: operate.change_queue,
    c.OrderWorker: orders.order_worker,
    c.SetSchedule: schedules.change,
    c.RemoveSchedule: schedules.change,
    c.PauseSchedule: schedules.change,
    c.ResumeSchedule: schedules.change,
    c.FireTicks: schedules.fire_ticks,
    c.FireNow: schedules.fire_now,
    c.Backfill: schedules.backfill,
    c.GetSchedule: lambda calls, it: calls.read(scheduled.get_schedule, it),
    c.ListSchedules: lambda calls, it: calls.read(scheduled.list_schedules, it),
    c.DueSchedules: lambda calls, it: calls.read(scheduled.due_schedules, it),
    c.NextTick: lambda calls, it: calls.read(scheduled.next_tick, it),
    c.Prune: lambda calls, it: calls.maintenance.retention.prune(it),
    c.GetJob: lambda calls, it: calls.read(reading.get_job, it),
    c.GetKey: lambda calls, it: calls.read(reading.get_key, it),
    c.ListJobs: lambda calls, it: calls.read(reading.list_jobs, it),
    c.ListQueues: lambda calls, it: calls.read(reading.list_queues, it),
    c.ListLeases: lambda calls, it: calls.read(reading.list_leases, it),
    c.GetLane: lambda calls, it: calls.read(reading.get_lane, it),
    c.ListLanes: lambda calls, it: calls.read(reading.list_lanes, it),
    c.GetGroup: lambda calls, it: calls.read(reading.get_group, it),
    c.ListGroups: lambda calls, it: calls.read(reading.list_groups, it),
    c.ListActions: lambda calls, it: calls.read(reading.list_actions, it),
    c.GetOrder: lambda calls, it: calls.read(get_order, it),
    c.SetLimit: operate_limits.change,
    c.ClearLimit: operate_limits.change,
    c.DeclareLimits: operate_limits.change,
    c.ListLimits: lambda calls, it: calls.read(views.list_limits, it),
    c.GetLimit: lambda calls, it: calls.read(views.get_limit, it),
    c.DueIn: lambda calls, it: calls.read(reading.due_in, it),
    c.GetPolicies: lambda calls, it: calls.read(reading.get_policies, it),
    c.GetTotals: lambda calls, _it: calls.read(reading.totals),
    c.GetTime: lambda calls, _it: calls.read(reading.time),
}
