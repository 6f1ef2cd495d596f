"""`postgresql://` the Store on PostgreSQL: which statement a command is, and what to do with what it leaves over.

Common verbs take the fast path (`verbs`), one statement for a batch; what that leaves over, and everything rare, is
decided by the kernel under locks (`exact`). Answers come after COMMIT. Adds no rule of queueing of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import ENDED_STATES, EXECUTIONS_KEPT, JobSpec
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.kernel.verbs.redrive import redriven_states
from leasemill.store.base import Store, Watch
from leasemill.store.ends import Subscription
from leasemill.store.postgres import reading
from leasemill.store.postgres.admin.migrate import require
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide
from leasemill.store.postgres.maintenance import Maintenance
from leasemill.store.postgres.presence import PostgresPresence
from leasemill.store.postgres.transactions.block import PostgresBlock
from leasemill.store.postgres.transactions.messages import Messages
from leasemill.store.postgres.transactions.using import BoundStore
from leasemill.store.postgres.verbs import ack, claim, commit, enqueue, extend, nack, release, start
from leasemill.store.postgres.wire.commit_connections import CommitConnections
from leasemill.store.postgres.wire.connections import Connection, Connections, Moved
from leasemill.store.postgres.wire.listen import Listener
from leasemill.store.postgres.wire.notify import Notifier
from leasemill.store.postgres.wire.statements import Statements
from leasemill.store.postgres.wire.url import PostgresOptions, parse_url
from leasemill.store.postgres.wire.watch import PostgresEndWatch, PostgresWatch
from leasemill.store.signal import Signal
from leasemill.store.sources import Clock, Entropy
from leasemill.store.threads import Threads
from leasemill.store.url import hidden_password

AnswerT = TypeVar("AnswerT")
ReportT = TypeVar("ReportT", c.StartReport, c.LeaseRef, c.AckReport, c.NackReport, c.ReleaseReport)
FastPath = Callable[[Database, Connection, Sequence[Any]], Mapping[str, Any]]

REPORTS_AT_ONCE: Final = 1_000
CLOSE_S: Final = 1.0
"""How long closing waits for calls under way: a server that is silent keeps no process from ending."""
EACH_ONCE: Final = 2
"""The tries of a report when no connection was lost: on the straight path, and by the kernel."""


class PostgresStore(Store):
    """A database's jobs. Threads and event loops may share one object."""

    def __init__(self, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> None:
        super().__init__(entropy)
        self.name = hidden_password(url)
        conninfo, self._options = parse_url(url)
        self._pool = Connections(conninfo, self._options)
        self._commits = CommitConnections(conninfo, self._options, self._pool)
        self._database = Database(Statements(self._options.schema), clock, self.expiries)
        self._messages = Messages(self._database)
        self.presence = PostgresPresence(self._pool, self._database)
        self._signal = Signal()
        self._notifier = Notifier(self._database.channel, self._notify)
        self._listener = Listener(self._pool.connect, self._database, self._signal, is_enabled=self._options.listen)
        self._threads = Threads(self._options.pool_size, "leasemill-postgres")
        self._has_arrived = False
        self._maintenance = Maintenance(self._pool, self._database, self._options, self._wake)
        self._is_closed = False
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
        return self._carry_out(command)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        if self._is_closed:
            raise Unavailable("this PostgreSQL store is closed; open another")
        return await self.off_loop(self._carry_out, command)

    def _carry_out(self, command: c.Command[AnswerT]) -> AnswerT:
        if self._is_closed:
            raise Unavailable("this PostgreSQL store is closed; open another")
        return cast(AnswerT, _HANDLERS[type(command)](self, command))

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
        self._notifier.stop()
        self._listener.stop()
        self._threads.close()
        self._pool.close(CLOSE_S)
        self._commits.close()
        self._signal.notify()
        self._listener.ends.notify_all()
        self._threads.join(until_s)
        self._notifier.join(until_s)
        self._listener.join(until_s)

    def using(self, connection: object) -> BoundStore:
        return BoundStore(self, self._database, self._notifier, self.use_queues, connection)

    def block(self, lease: c.Lease, seconds_left: float) -> PostgresBlock:
        return PostgresBlock(self, self._database, self._commits, self._messages, lease, seconds_left)

    # For transactions of users, on connections of our own

    def use_queues(self, jobs: Sequence[JobSpec]) -> None:
        """I7, on a connection of our own: a caller's transaction, however long, locks no queue."""
        if self._database.claim_queues.issuperset(job.queue for job in jobs):
            return

        def work(connection: Connection) -> set[str]:
            names = enqueue.check_enqueue_queues(self._database, connection, jobs)
            enqueue.fix_queues(self._database, connection, names)
            return names

        self._database.claim_queues.update(self._pool.run(work))

    def settle(self, command: c.Commit) -> c.CommitOutcome | None:
        """How a commit sent elsewhere ended, waiting for one under way. None: it did not happen, the lease is held."""

        def work(connection: Connection) -> c.CommitOutcome | None:
            try:
                return decide(self._database, connection, command, Concern([command.job_id]))
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
            raise Unavailable("this PostgreSQL store is closed; open another") from None  # it had not begun

    # Straight path

    def _do_enqueue(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        channel = self._notifier.channel()
        tries = 0

        def work(connection: Connection) -> list[c.EnqueueOutcome]:
            nonlocal tries
            tries += 1
            return enqueue.enqueue(self._database, connection, command, channel=channel, is_repeat=tries > 1)

        answer = self._pool.run(work)
        self._signal.notify()
        return answer

    def _do_claim(self, command: c.Claim) -> list[c.Lease]:
        """What is granted is returned at once; only a claim that is granted nothing looks for more to give (L7)."""
        database = self._database
        if not database.claim_queues.issuperset(command.queues):
            self._pool.run(lambda connection: claim.check_claim_queues(database, connection, command.queues))
        if self._has_arrived:  # the claim before this one saw them
            self._maintenance.admit()
        claimed = self._claimed(command)
        if not claimed.leases and self._maintenance.found_more(claimed, command.limit):
            claimed = self._claimed(command)
        self._has_arrived = claimed.has_arrived
        many = [lease for lease in claimed.leases if lease.attempt > EXECUTIONS_KEPT]
        if many:
            self._maintenance.trim(many)
        return claimed.leases

    def _claimed(self, command: c.Claim) -> claim.Claimed:
        tries = 0

        def work(connection: Connection) -> claim.Claimed:
            nonlocal tries
            tries += 1
            return claim.claim(self._database, connection, command, is_repeat=tries > 1)

        return self._pool.run(work, is_repeatable=command.request_id is not None)

    def _do_start(self, command: c.Start) -> list[c.StartOutcome]:
        return self._reported(command.reports, start.start, c.Start)

    def _do_extend(self, command: c.Extend) -> list[c.ExtendOutcome]:
        return self._reported(command.leases, extend.extend, c.Extend)

    def _do_ack(self, command: c.Ack) -> list[c.AckOutcome]:
        answer = self._reported(command.reports, ack.ack, c.Ack)
        self._signal.notify()
        return answer

    def _do_nack(self, command: c.Nack) -> list[c.NackOutcome]:
        return self._reported(command.reports, nack.nack, c.Nack, wakes=True)

    def _do_release(self, command: c.Release) -> list[c.ReleaseOutcome]:
        return self._reported(command.reports, release.release, c.Release, wakes=True)

    def _reported(
        self,
        reports: Sequence[ReportT],
        fast: FastPath,
        make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
        *,
        wakes: bool = False,
    ) -> list[Any]:
        """One outcome for each report: from the straight path, else as the kernel decides."""
        outcomes: list[Any] = []
        for first in range(0, len(reports), REPORTS_AT_ONCE):
            outcomes += self._reported_some(reports[first : first + REPORTS_AT_ONCE], fast, make)
        if wakes and reports:
            self._wake()
        return outcomes

    def _reported_some(
        self,
        reports: Sequence[ReportT],
        fast: FastPath,
        make: Callable[[Sequence[ReportT]], c.Command[list[Any]]],
    ) -> list[Any]:
        database = self._database
        places: dict[str, int] = {}
        for place, report in enumerate(reports):
            places.setdefault(report.job_id, place)  # E6: the straight path takes the first report on each job
        once = [reports[place] for place in places.values()]
        rest: list[ReportT] = []
        tries = itertools.count()

        def first(connection: Connection) -> Any:
            next(tries)
            return fast(database, connection, once)

        def then(connection: Connection) -> Any:
            next(tries)
            return decide(database, connection, make(rest), Concern([report.job_id for report in rest]))

        done = self._pool.run(first)
        if len(done) == len(reports):
            return [done[report.job_id] for report in reports]
        answered = {places[job_id]: outcome for job_id, outcome in done.items()}
        rest += [report for place, report in enumerate(reports) if place not in answered]
        decided = self._pool.run(then)
        has_tried_again = next(tries) > EACH_ONCE
        following = iter(_as_first_told(decided) if has_tried_again else decided)
        self._wake()
        return [answered[place] if place in answered else next(following) for place in range(len(reports))]

    def _do_commit(self, command: c.Commit) -> c.CommitOutcome:
        database = self._database
        channel = self._notifier.channel() if command.followups else None

        def work(connection: Connection) -> c.CommitOutcome:
            outcome = commit.commit(database, connection, command, channel=channel)
            return outcome or decide(database, connection, command, Concern([command.job_id]))

        answer = self._pool.run(work)
        if any(followup.lane is not None for followup in command.followups):
            self._maintenance.admit()
        self._signal.notify()
        return answer

    # Decided by the kernel

    def _do_expire(self, command: c.Expire) -> list[c.Expiration]:
        answer = self._maintenance.run(command.limit)
        self._signal.notify()
        return answer

    def _do_acquire(self, command: c.Acquire) -> list[c.AcquireOutcome]:
        requests = command.requests
        ids = [offset_id(request.queue, request.lane, request.offset) for request in requests]
        lanes = list({(request.queue, request.lane): None for request in requests})
        return self._decided(command, Concern(ids, lanes, makes_lanes=True))

    def _do_cancel(self, command: c.Cancel) -> list[c.CancelOutcome]:
        return self._decided(command, Concern(command.job_ids))

    def _do_redrive(self, command: c.Redrive) -> c.Operated:
        return self._swept(command, redriven_states(command), makes_lanes=True)

    def _do_purge(self, command: c.Purge) -> c.Operated:
        return self._swept(command, ENDED_STATES, makes_lanes=False)

    def _swept(self, command: c.Redrive | c.Purge, states: frozenset[Any], *, makes_lanes: bool) -> c.Operated:
        """O6: found by reading, then decided under locks: what changed meanwhile is left alone."""
        database = self._database

        def work(connection: Connection) -> c.Operated:
            jobs, after = reading.fitting(database, connection, command.filter, states, command.limit, command.after)
            ids = tuple(job.spec.id for job in jobs)
            if not ids:
                return c.Operated((), after)
            narrowed = replace(command, filter=replace(command.filter, job_ids=ids))
            operated = decide(database, connection, narrowed, Concern(ids, makes_lanes=makes_lanes))
            return c.Operated(operated.job_ids, after)

        answer = self._pool.run(work, is_repeatable=False)
        self._wake()
        return answer

    def _do_on_queue(self, command: c.Pause | c.Resume | c.SetPolicy) -> None:
        self._decided(command, Concern(queues=[command.queue]))

    def _decided(self, command: c.Command[AnswerT], concern: Concern) -> AnswerT:
        answer = self._pool.run(lambda connection: decide(self._database, connection, command, concern))
        self._wake()
        return answer

    def _do_prune(self, command: c.Prune) -> int:
        return self._maintenance.retention.prune(command, waits=True)

    # Reading

    def _read(self, read: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.run(lambda connection: read(self._database, connection, *arguments))

    # Waking

    def _wake(self) -> None:
        self._signal.notify()
        self._notifier.notify()

    def _notify(self) -> None:
        channel = self._database.channel
        self._pool.run(lambda connection: connection.execute("select pg_notify(%s, '')", [channel]))


_HANDLERS: Final[dict[type, Callable[[PostgresStore, Any], Any]]] = {
    c.Enqueue: PostgresStore._do_enqueue,
    c.Claim: PostgresStore._do_claim,
    c.Start: PostgresStore._do_start,
    c.Extend: PostgresStore._do_extend,
    c.Commit: PostgresStore._do_commit,
    c.Ack: PostgresStore._do_ack,
    c.Nack: PostgresStore._do_nack,
    c.Release: PostgresStore._do_release,
    c.Expire: PostgresStore._do_expire,
    c.Acquire: PostgresStore._do_acquire,
    c.Cancel: PostgresStore._do_cancel,
    c.Redrive: PostgresStore._do_redrive,
    c.Purge: PostgresStore._do_purge,
    c.Pause: PostgresStore._do_on_queue,
    c.Resume: PostgresStore._do_on_queue,
    c.SetPolicy: PostgresStore._do_on_queue,
    c.Prune: PostgresStore._do_prune,
    c.GetJob: lambda store, it: store._read(reading.get_job, it),
    c.ListJobs: lambda store, it: store._read(reading.list_jobs, it),
    c.ListQueues: lambda store, it: store._read(reading.list_queues, it),
    c.GetLane: lambda store, it: store._read(reading.get_lane, it),
    c.ListLanes: lambda store, it: store._read(reading.list_lanes, it),
    c.ListActions: lambda store, it: store._read(reading.list_actions, it),
    c.DueIn: lambda store, it: store._read(reading.due_in, it),
    c.GetTotals: lambda store, _it: store._read(reading.totals),
}


def _as_first_told(outcomes: Sequence[Any]) -> list[Any]:
    """A reply was lost, and the report was sent again: what looks like the caller's repeat is our own."""
    return [replace(it, is_repeat=False) if getattr(it, "is_repeat", False) else it for it in outcomes]
