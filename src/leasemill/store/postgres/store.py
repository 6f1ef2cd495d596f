"""`postgresql://` the Store on PostgreSQL: opened and closed here, and which verb a command is.

A verb is a generator without I/O (`steps.py`); `run` drives it in the calling thread, `arun` on the event loop. Common
verbs take one statement for a batch (`verbs`); what that leaves over, and everything rare, is decided by the kernel
under locks (`exact`). Adds no rule of queueing of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Block, Store, Watch
from leasemill.store.notifications import Signal, Subscription
from leasemill.store.postgres import reading
from leasemill.store.postgres.admin.migrate import require
from leasemill.store.postgres.batching import EnqueueBatches
from leasemill.store.postgres.context import VerbContext, read
from leasemill.store.postgres.driver.commit_connections import CommitConnections
from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.driver.loop import LoopDriver
from leasemill.store.postgres.driver.pool import store_closed
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.driver.url import PostgresOptions, parse_url
from leasemill.store.postgres.keys import PostgresKeys
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.limits import operate as operate_limits
from leasemill.store.postgres.limits import views
from leasemill.store.postgres.maintenance import Maintenance
from leasemill.store.postgres.presence import PostgresPresence, get_order
from leasemill.store.postgres.retention_loop import RetentionLoop
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.steps import RetryTransaction, Steps, Verb, row, transact
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
    nack,
    operate,
    release,
    schedules,
    start,
    worker_commands,
)
from leasemill.store.postgres.verbs.acquire import ack_then_acquire
from leasemill.store.postgres.verbs.claim import ack_and_claim
from leasemill.store.postgres.waking.listen import Listener
from leasemill.store.postgres.waking.notify import Notifier, notification
from leasemill.store.postgres.waking.watch import PostgresEndWatch, PostgresWatch
from leasemill.store.readings import Pulse
from leasemill.store.system import Clock, Entropy
from leasemill.store.threads import Threads, start_over_in_children
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
        statements = Statements(self._options.schema, clock)
        self._connections = Connections(conninfo, self._options)
        self._commits = CommitConnections(conninfo, self._options, self._connections)
        self._known = Known(self._options.schema, clock, self.expiries)
        self._threads = Threads(self._options.pool_size, "leasemill-postgres")
        self._thread_driver = ThreadDriver(self._connections, statements)
        self._loop_driver = LoopDriver(self._thread_driver, self.off_loop)
        self._messages = Messages(statements)
        self.presence = PostgresPresence(self._thread_driver)
        self.keys = PostgresKeys(self._thread_driver)
        self._signal = Signal()
        self._notifier = Notifier(self._known.channel, self._signal, self._notify)
        self._listener = Listener(
            self._thread_driver, self._known.channel, self._signal, is_enabled=self._options.listen
        )
        self._maintenance = Maintenance(self._known, self._notifier, self._begin_retention)
        self._retention_loop = RetentionLoop(self._thread_driver, self._maintenance.retention, self._options)
        self._context = VerbContext(self._known, self._maintenance, self._notifier, self._signal)
        self._batches = EnqueueBatches(self._context, self._thread_driver, self._loop_driver)
        self._is_closed = False
        start_over_in_children(self)
        try:
            self._thread_driver.with_connection(
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
            return cast(AnswerT, self._batches.run(command))
        verb: Verb[AnswerT] = VERBS[type(command)](self._context, command)
        return self._thread_driver.run(verb)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        self._check_open()
        if isinstance(command, c.Enqueue):
            return cast(AnswerT, await self._batches.arun(command))
        verb: Verb[AnswerT] = VERBS[type(command)](self._context, command)
        return await self._loop_driver.run(verb)

    def pulse(self) -> Pulse:
        self._check_open()
        return self._thread_driver.run(read(reading.pulse))

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        """In one transaction, if nothing is special."""
        check(ack)
        check(claim)
        self._check_open()
        return await self._loop_driver.run(ack_and_claim(self._context, ack, claim))

    def ack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        """In one transaction."""
        return self._thread_driver.run(self._ack_then_acquire(ack, acquire))

    async def aack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
        return await self._loop_driver.run(self._ack_then_acquire(ack, acquire))

    def _ack_then_acquire(
        self, ack: c.AckReport, acquire: c.AcquireRequest
    ) -> Verb[tuple[c.AckOutcome, c.AcquireOutcome | None]]:
        check(c.Ack([ack]))
        check(c.Acquire([acquire]))
        self._check_open()
        return ack_then_acquire(self._context, ack, acquire)

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
        self._retention_loop.stop()
        self._notifier.stop()
        self._listener.stop()
        self._threads.close()
        self._loop_driver.finish(CLOSE_S)
        self._connections.close(CLOSE_S)
        self._loop_driver.give_up()
        self._commits.close()
        self._signal.notify()
        self._listener.ends.notify_all()
        self._retention_loop.join(until_s)
        self._threads.join(until_s)
        self._notifier.join(until_s)
        self._listener.join(until_s)

    def after_fork(self) -> None:
        """A child has its own connections, locks and callers."""
        self._connections.after_fork()
        self._commits.after_fork()
        self._known.positions.after_fork()
        self._signal.reset()
        self._notifier.after_fork()
        self._listener.after_fork()
        self._maintenance.after_fork()
        self._retention_loop.after_fork()
        self._loop_driver.after_fork()
        self._batches.after_fork()

    def using(self, connection: object) -> BoundStore:
        return BoundStore(
            self, self._known, self._thread_driver.statements, self._notifier, self.use_queues, connection
        )

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return PostgresBlock(
            self, self._known, self._thread_driver.statements, self._commits, self._messages, lease, seconds_left
        )

    def joined_block(self, lease: c.Lease, session: object) -> JoinedBlock:
        return JoinedBlock(self, self._known, self._thread_driver.statements, lease, session)

    # For transactions of users, on connections of our own

    def use_queues(self, jobs: Sequence[JobSpec]) -> None:
        """I7, on a connection of our own: a caller's transaction, however long, locks no queue."""
        self._thread_driver.run(enqueue.register(self._known, jobs))

    def look(self, lease: c.LeaseRef) -> c.CommitOutcome | None:
        """Return None if the lease is held, before a block runs. An outcome: it is not, and the refusal is recorded."""
        given = {"id": lease.job_id, "token": lease.token}
        (status,) = self._thread_driver.run(read(row, "lease_status", given))
        return None if status == "held" else self.settle(c.Commit(lease.job_id, lease.token))

    def settle(self, command: c.Commit) -> c.CommitOutcome | None:
        """How a commit sent elsewhere ended, waiting for one under way. None: it did not happen, the lease is held."""

        def steps() -> Steps[c.CommitOutcome | None]:
            try:
                return (yield from commit.settle(self._known, command))
            except RetryTransaction:
                return None

        return self._thread_driver.run(transact(lambda _: steps()))

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

    def _begin_retention(self) -> None:
        self._retention_loop.begin()

    def _notify(self) -> None:
        self._thread_driver.run(transact(lambda _: notification(self._known.channel)))


VERBS: Final[dict[type, Callable[[VerbContext, Any], Verb[Any]]]] = {
    c.Claim: claim.claim,
    c.Start: start.start,
    c.Extend: extend.extend,
    c.Commit: commit.commit,
    c.Ack: ack.ack,
    c.Nack: nack.nack,
    c.Release: release.release,
    c.Expire: expire.expire,
    c.Death: death.death,
    c.Acquire: acquire.acquire,
    c.Cancel: operate.cancel,
    c.Redrive: operate.redrive,
    c.Purge: operate.purge,
    c.CreateGroup: group.create,
    c.SealGroup: group.seal,
    c.CancelGroup: group.cancel,
    c.Pause: operate.change_queue,
    c.Resume: operate.change_queue,
    c.SetPolicy: operate.change_queue,
    c.OrderWorker: worker_commands.order_worker,
    c.SetSchedule: schedules.change,
    c.RemoveSchedule: schedules.change,
    c.PauseSchedule: schedules.change,
    c.ResumeSchedule: schedules.change,
    c.FireTicks: schedules.fire_ticks,
    c.FireNow: schedules.fire_now,
    c.Backfill: schedules.backfill,
    c.SetLimit: operate_limits.change,
    c.ClearLimit: operate_limits.change,
    c.DeclareLimits: operate_limits.change,
    c.Prune: lambda context, command: context.maintenance.retention.prune(command),
    c.GetSchedule: lambda _, query: read(reading.get_schedule, query),
    c.ListSchedules: lambda _, query: read(reading.list_schedules, query),
    c.DueSchedules: lambda _, query: read(reading.due_schedules, query),
    c.NextTick: lambda _, query: read(reading.next_tick),
    c.GetJob: lambda _, query: read(reading.get_job, query),
    c.GetKey: lambda _, query: read(reading.get_key, query),
    c.ListJobs: lambda _, query: read(reading.list_jobs, query),
    c.ListQueues: lambda _, query: read(reading.list_queues, query),
    c.ListLeases: lambda _, query: read(reading.list_leases, query),
    c.GetLane: lambda _, query: read(reading.get_lane, query),
    c.ListLanes: lambda _, query: read(reading.list_lanes, query),
    c.GetGroup: lambda _, query: read(reading.get_group, query),
    c.ListGroups: lambda _, query: read(reading.list_groups, query),
    c.ListActions: lambda _, query: read(reading.list_actions, query),
    c.GetOrder: lambda _, query: read(get_order, query),
    c.ListLimits: lambda _, query: read(views.list_limits, query),
    c.GetLimit: lambda _, query: read(views.get_limit, query),
    c.DueIn: lambda context, query: read(reading.due_in, context.known, query),
    c.GetPolicies: lambda _, query: read(reading.get_policies, query),
    c.GetTotals: lambda _, query: read(reading.totals),
    c.GetTime: lambda _, query: read(reading.time),
}
"""The one way of each command; the enqueues of callers at the same time share theirs (`batching.py`)."""
