"""Kill a run of a handler at a chosen point, inside a test: what a worker that dies there leaves behind.

    with in_memory(app) as clock:
        charge.enqueue("ann", 500)
        with crash_at(app, clock, "before_commit"):
            drain(app)
        drain(app)

Inside the block the app's store is wrapped; workers and handlers run the code that they always run. A run that dies
gets `WorkerCrashed`, a BaseException, out of its commit, and nothing it sends to the store from then on arrives. Its
lease is over when the block ends, and the next drain runs the job again.

Python unwinds the handler, so its `finally` blocks run, which a killed process does not do. Transactions are rolled
back by that, as a server rolls back those of a client that is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

from leasemill.api.app import App
from leasemill.api.job import JobType
from leasemill.api.logs import running
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.commands import REPORTS, HolderReport, reports_in
from leasemill.kernel.model import Job, LossReason, Verb
from leasemill.kernel.transitions.fence import execution_of
from leasemill.store.base import Block, Store, Watch
from leasemill.store.notifications import Subscription
from leasemill.testing.clock import ManualClock
from leasemill.worker.run import Run

AnswerT = TypeVar("AnswerT")

CrashPoint: TypeAlias = Literal["before_start", "before_commit", "after_commit", "before_ack", "lease_lost"]
CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)
"""The crash points, in the order in which a run reaches them."""

EXPIRED_AT_ONCE: Final = 1_000


class WorkerCrashed(BaseException):
    """The worker of this run is dead. Not an Exception: a handler that catches those does not survive either."""


@contextmanager
def crash_at(
    app: App, clock: ManualClock, point: CrashPoint, *, of: JobType[..., Any] | str | None = None
) -> Iterator[None]:
    """Inside the block the first run that reaches `point` dies there; `of`: the first of this job, or kind.

    - `before_start`: claimed, and the handler is not called.
    - `before_commit`: the block of `ctx.commit()` is through, and the commit is not sent.
    - `after_commit`: the commit is on record, and the handler does not go on.
    - `before_ack`: the handler has returned, and its end is not reported.
    - `lease_lost`: the lease expires just before the commit (before the ack of a handler that does not commit), and the
      run goes on without knowing. The store refuses what it sends.

    Raises AssertionError at the end of the block if no run has reached the point.
    """
    if point not in CRASH_POINTS:
        raise Invalid(f"there is no crash point {point!r}: write one of {', '.join(CRASH_POINTS)}")
    kind = of.kind if isinstance(of, JobType) else of
    store = CrashingStore(app.store, clock, point, kind)
    with app.bound_to(store):
        yield
    if store.victim is None:
        raise AssertionError(_not_reached(store, point, kind))
    store.bury(store.victim)


def _not_reached(store: CrashingStore, point: CrashPoint, kind: str | None) -> str:
    who = "no run" if kind is None else f"no run of {kind!r}"
    if not store.reached:
        return f"{who} reached {point!r}, because no job ran: enqueue one that is due, and drain inside the block"
    seen = ", ".join(f"{one} of {its_kind}" for its_kind, one in store.reached)
    hint = "; a handler without ctx.commit() has no commit of its own" if "commit" in point else ""
    return f"{who} reached {point!r}, the runs only reached: {seen}{hint}"


class CrashingStore(Store):
    """Another store, as seen by workers of which one run dies. Without a point, it only records what runs reach."""

    def __init__(
        self, inner: Store, clock: ManualClock, point: CrashPoint | None = None, kind: str | None = None
    ) -> None:
        super().__init__(inner.entropy, has_test_clock=inner.has_test_clock)
        self.name = inner.name
        self.presence = inner.presence
        self.expiries = inner.expiries
        self.reached: dict[tuple[str, CrashPoint], None] = {}
        """The points that runs have come to, by kind, in order."""
        self.victim: c.Lease | None = None
        self._inner = inner
        self._clock = clock
        self._point = point
        self._kind = kind
        self._lock = threading.Lock()
        self._leases: dict[str, c.Lease] = {}
        self._dead: set[str] = set()

    def bury(self, lease: c.Lease) -> None:
        """Let time end the lease of the run that died, and let the store record it."""
        self._pass_end(lease, self._inner.run(c.GetJob(lease.job.id)))
        self._inner.run(c.Expire(EXPIRED_AT_ONCE))

    async def abury(self, lease: c.Lease) -> None:
        """`bury` in async code."""
        self._pass_end(lease, await self._inner.arun(c.GetJob(lease.job.id)))
        await self._inner.arun(c.Expire(EXPIRED_AT_ONCE))

    # The store's methods

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        self._check_caller()
        for lease in self._zombies(command):
            self.bury(lease)
        sent, complete = self._without_dead(command)
        return complete([] if sent is None else self._inner.run(sent))

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        self._check_caller()
        for lease in self._zombies(command):
            await self.abury(lease)
        sent, complete = self._without_dead(command)
        return complete([] if sent is None else await self._inner.arun(sent))

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._inner.watch(queues)

    def watch_end(self, job_id: str) -> Watch:
        return self._inner.watch_end(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._inner.watch_cancellations(wake)

    def close(self) -> None:
        self._inner.close()

    def using(self, connection: object) -> Store:
        self._check_caller()
        return self._inner.using(connection)

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return CrashingBlock(self, lease, self._inner.block(lease, seconds_left))

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        return CrashingBlock(self, lease, self._inner.joined_block(lease, session))

    # What happens to a run

    def dies_at(self, point: CrashPoint, lease: c.Lease) -> bool:
        """A run has come to a point; True: it ends there."""
        with self._lock:
            self.reached[lease.job.kind, point] = None
            if self.victim is not None or point != self._point or self._kind not in (None, lease.job.kind):
                return False
            self.victim = lease
            if point != "lease_lost":
                self._dead.add(lease.token)
            return True

    def _pass_end(self, lease: c.Lease, job: Job | None) -> None:
        execution = execution_of(job, lease.token)
        end = lease.expires_at if execution is None else execution.expires_at
        self._clock.advance(us=max(0, end - self._clock.now()))

    def check_alive(self, lease: c.Lease) -> None:
        """A dead run that continues in a `finally`, or after a bare `except`, reaches nothing."""
        if lease.token not in self._dead:
            return
        run = running.get()
        if isinstance(run, Run):
            run.loss.set(f"crashed at {self._point}")  # whatever it returns or raises is not reported
        raise WorkerCrashed(f"the worker of job {lease.job.id!r} crashed at {self._point}: the test asked for it")

    def _check_caller(self) -> None:
        run = running.get()
        if isinstance(run, Run):
            self.check_alive(run.lease)

    def _zombies(self, command: c.Command[Any]) -> list[c.Lease]:
        """Runs whose ack is about to arrive too late."""
        if not isinstance(command, c.Ack):
            return []
        return [
            lease
            for report in command.reports
            if (lease := self._leases.get(report.token)) is not None and self.dies_at("lease_lost", lease)
        ]

    def _without_dead(self, command: c.Command[AnswerT]) -> tuple[c.Command[AnswerT] | None, Callable[[Any], AnswerT]]:
        """Return the part of a command that is sent (None: nothing), and how its answer becomes that of the whole."""
        if isinstance(command, c.Claim):
            return cast(c.Command[AnswerT], command), cast(Callable[[Any], AnswerT], self._claimed)
        verb = REPORTS.get(type(command))
        if verb is None or verb is Verb.COMMIT:  # which has a block of its own
            return command, lambda answer: cast(AnswerT, answer)
        reports = reports_in(cast(HolderReport, command))
        if verb is Verb.ACK:
            for report in reports:
                if (lease := self._leases.get(report.token)) is not None and report.token not in self._dead:
                    self.dies_at("before_ack", lease)
        dead = frozenset(self._dead)  # more may die before the answer is there
        alive = [report for report in reports if report.token not in dead]
        if len(alive) == len(reports):
            return command, lambda answer: cast(AnswerT, answer)

        def complete(answer: Any) -> AnswerT:
            outcomes = iter(answer)
            whole = [self._lost(report, verb) if report.token in dead else next(outcomes) for report in reports]
            return cast(AnswerT, whole)

        return (type(command)(alive) if alive else None), complete

    def _lost(self, report: Any, verb: Verb) -> c.Lost:
        """A report that is lost gets this reply, so that the test's worker goes on; the store records nothing."""
        attempt = self._leases[report.token].attempt
        return c.Lost(report.job_id, verb, LossReason.EXPIRED, attempt, attempt)

    def _claimed(self, leases: list[c.Lease]) -> list[c.Lease]:
        self._leases.update((lease.token, lease) for lease in leases)
        return [lease for lease in leases if not self.dies_at("before_start", lease)]


class CrashingBlock(Block):
    """Another store's block around a commit; the run may die on either side of the commit."""

    def __init__(self, store: CrashingStore, lease: c.Lease, inner: Block) -> None:
        super().__init__(store)
        self._crashing = store
        self._lease = lease
        self._inner = inner

    @property
    def connection(self) -> Any:
        return self._inner.connection

    def begin(self) -> c.CommitOutcome | None:
        return self._inner.begin()

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        self._before()
        if self._crashing.dies_at("lease_lost", self._lease):
            self._crashing.bury(self._lease)
        return self._after(self._inner.commit(command))

    def roll_back(self) -> None:
        self._inner.roll_back()

    async def abegin(self) -> c.CommitOutcome | None:
        return await self._inner.abegin()

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        self._before()
        if self._crashing.dies_at("lease_lost", self._lease):
            await self._crashing.abury(self._lease)
        return self._after(await self._inner.acommit(command))

    async def aroll_back(self) -> None:
        await self._inner.aroll_back()

    def _before(self) -> None:
        self._crashing.dies_at("before_commit", self._lease)
        self._crashing.check_alive(self._lease)

    def _after(self, outcome: c.CommitOutcome | None) -> c.CommitOutcome | None:
        if isinstance(outcome, c.Committed):
            self._crashing.dies_at("after_commit", self._lease)
            self._crashing.check_alive(self._lease)
        return outcome
