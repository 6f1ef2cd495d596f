"""What a store is: one class of verbs, readings and operations over `run`.

Every store passes the whole conformance suite (`leasemill.testing.conformance`) or is not a store. A store derives from
`Store` and supplies `run` and `arun`, which take any command of `kernel.commands` and return when its answer is
durable, the three ways to wait (`watch`, `watch_end`, `watch_cancellations`), `close` and `presence`. Every other
method builds a command and runs it; async code writes `await store.arun(command)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from leasemill.errors import Invalid, LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import Action, ChainedJob, Job, JobSpec, LimitTerms, Policy
from leasemill.store.block import Block
from leasemill.store.cancelling import cancelled
from leasemill.store.ends import Subscription
from leasemill.store.expiries import Expiries
from leasemill.store.presence import Presence
from leasemill.store.sources import Clock, Entropy, SystemEntropy, WallClock

AnswerT = TypeVar("AnswerT")


class Watch(Protocol):
    """Something to wait for. It returns True when that may have happened since the watch was made or last returned
    True, False when the time has passed."""

    def wait(self, timeout_s: float) -> bool: ...

    async def wait_async(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class Store(ABC):
    """Sequences in, one outcome for each item out, in order. Every reading is bounded by a limit; every operation is
    recorded with who did it and why."""

    name = "store"
    """Where it is, as it may be shown: an absolute folder, or a URL without its password."""

    own_url: str | None = None
    """By which a handler's process opens the store for itself, to write in its transactions; None: it asks the worker's
    process."""

    presence: Presence
    """Where workers publish their records."""

    def __init__(self, entropy: Entropy | None = None, wall: Clock | None = None) -> None:
        self.entropy: Entropy = entropy or SystemEntropy()
        self.wall: Clock = wall or WallClock()
        """What ticks of schedules are asked of: the machine's clock or, in tests, the store's."""
        self.expiries = Expiries()

    @abstractmethod
    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        """Run a command; its answer is durable."""

    @abstractmethod
    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        """The same, without blocking the event loop."""

    @abstractmethod
    def watch(self, queues: Sequence[str]) -> Watch:
        """Something to wait on for new work in these queues."""

    @abstractmethod
    def watch_end(self, job_id: str) -> Watch:
        """Something to wait on for the end of this job (O9). Make it, then look at the job: an end after that wakes.

        It may wake although the job has not ended, and a wait may return early: look again."""

    @abstractmethod
    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        """Call `wake`, in any thread, when a job was cancelled while a worker held it; also when one may have been."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; a closed store runs no command."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def using(self, connection: object) -> Store:
        """This store with an enqueue in the transaction of a caller's connection; on PostgreSQL alone."""
        raise Invalid(
            "using(connection) needs a store on PostgreSQL, in the connection's own database; "
            "on another store enqueue without it, after the transaction has committed"
        )

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        """What surrounds a commit of this lease; its handler may run for `seconds_left`."""
        return Block(self)

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        """What surrounds a commit of this lease in the transaction of a caller's session; on PostgreSQL alone."""
        raise Invalid(
            "ctx.commit(session) needs a store on PostgreSQL, in the session's own database; for a database beside "
            "this store write `with ctx.once(connection)`"
        )

    # Verbs

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        """C8: the outcomes of both, the claim after the ack; durable together where a store can. No leases: the claim
        did not come to its end, and is to be repeated."""
        outcomes = await self.arun(ack)
        try:
            return outcomes, await self.arun(claim)
        except LeasemillError:
            return outcomes, None

    def enqueue(self, jobs: Sequence[JobSpec]) -> list[c.EnqueueOutcome]:
        return self.run(c.Enqueue(jobs))

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        limit: int,
        *,
        kinds: Mapping[str, Policy] | None = None,
        request_id: str | None = None,
        slots: int | None = None,
    ) -> list[c.Lease]:
        *tokens, request = self.entropy.tokens(max(0, min(limit, BATCH_ITEMS)) + 1)
        return self.run(c.Claim(worker, queues, limit, tokens, request_id or request, kinds or {}, slots))

    def start(self, reports: Sequence[c.StartReport]) -> list[c.StartOutcome]:
        return self.run(c.Start(reports))

    def extend(self, leases: Sequence[c.LeaseRef]) -> list[c.ExtendOutcome]:
        return self.run(c.Extend(leases))

    def commit(
        self, job_id: str, token: str, *, result: bytes | None = None, followups: Sequence[c.Followup] = ()
    ) -> c.CommitOutcome:
        return self.run(c.Commit(job_id, token, result, followups))

    def ack(self, reports: Sequence[c.AckReport]) -> list[c.AckOutcome]:
        return self.run(c.Ack(reports))

    def nack(self, reports: Sequence[c.NackReport]) -> list[c.NackOutcome]:
        return self.run(c.Nack(reports))

    def release(self, reports: Sequence[c.ReleaseReport]) -> list[c.ReleaseOutcome]:
        return self.run(c.Release(reports))

    def expire(self, limit: int = 1_000) -> list[c.Expiration]:
        return self.run(c.Expire(limit))

    def death(self, reports: Sequence[c.DeathReport]) -> list[c.DeathOutcome]:
        return self.run(c.Death(reports))

    def acquire(self, requests: Sequence[c.AcquireRequest]) -> list[c.AcquireOutcome]:
        return self.run(c.Acquire(requests))

    def create_group(
        self,
        group_id: str,
        *,
        then: ChainedJob | None = None,
        on_end: ChainedJob | None = None,
        parent: str | None = None,
    ) -> c.OpenedGroup:
        return self.run(c.CreateGroup(group_id, then, on_end, parent))

    def seal_group(self, group_id: str, *, by: str = "", reason: str = "") -> c.GroupView:
        return self.run(c.SealGroup(group_id, by, reason))

    # Readings

    def job(self, job_id: str) -> Job | None:
        return self.run(c.GetJob(job_id))

    async def ajob(self, job_id: str) -> Job | None:
        return await self.arun(c.GetJob(job_id))

    def jobs(
        self, where: c.JobFilter | None = None, *, limit: int = 100, after: int = 0, newest_first: bool = False
    ) -> c.JobPage:
        return self.run(c.ListJobs(where or c.JobFilter(), limit, after, newest_first))

    def leases(self, *, worker: str | None = None, limit: int = 100, after: int = 0) -> list[c.LeaseView]:
        return self.run(c.ListLeases(limit, after, worker))

    def key(self, key: str) -> c.KeyView | None:
        return self.run(c.GetKey(key))

    def queues(self, *, limit: int = 100, after: str = "") -> list[c.QueueView]:
        return self.run(c.ListQueues(limit, after))

    def lane(self, queue: str, lane: str) -> c.LaneView | None:
        return self.run(c.GetLane(queue, lane))

    def lanes(self, queue: str, *, blocked_only: bool = False, limit: int = 100, after: int = 0) -> c.LanePage:
        return self.run(c.ListLanes(queue, limit, blocked_only, after))

    def group(self, group_id: str) -> c.GroupView | None:
        return self.run(c.GetGroup(group_id))

    def groups(
        self, *, open_only: bool = False, limit: int = 100, after: str = "", parent: str | None = None
    ) -> list[c.GroupView]:
        return self.run(c.ListGroups(limit, open_only, after, parent))

    def limit(self, name: str, *, key: str | None = None, limit: int = 100, after: str = "") -> c.LimitView | None:
        return self.run(c.GetLimit(name, limit, after, key))

    def limits(self, *, limit: int = 100, after: str = "") -> list[c.LimitView]:
        return self.run(c.ListLimits(limit, after))

    def actions(self, *, limit: int = 100) -> list[Action]:
        return self.run(c.ListActions(limit))

    def totals(self) -> c.Totals:
        return self.run(c.GetTotals())

    def time(self) -> int:
        return self.run(c.GetTime())

    def due_in(self, queues: Sequence[str]) -> int | None:
        return self.run(c.DueIn(queues))

    # Operations

    def cancel(self, job_ids: Sequence[str], *, by: str, reason: str) -> list[c.CancelOutcome]:
        return self.run(c.Cancel(job_ids, by, reason))

    def cancel_group(self, group_id: str, *, by: str, reason: str) -> list[str]:
        """With the groups in it; returns the ids of the jobs that were cancelled."""
        return [job_id for operated in cancelled(self, group_id, by, reason) for job_id in operated.job_ids]

    def redrive(
        self,
        where: c.JobFilter,
        *,
        by: str,
        reason: str,
        limit: int = 1_000,
        after: int = 0,
        include_cancelled: bool = False,
    ) -> c.Operated:
        return self.run(c.Redrive(where, by, reason, limit, after, include_cancelled))

    def purge(self, where: c.JobFilter, *, by: str, reason: str, limit: int = 1_000, after: int = 0) -> c.Operated:
        return self.run(c.Purge(where, by, reason, limit, after))

    def pause(self, queue: str, *, by: str, reason: str) -> None:
        self.run(c.Pause(queue, by, reason))

    def resume(self, queue: str, *, by: str, reason: str) -> None:
        self.run(c.Resume(queue, by, reason))

    def set_policy(self, queue: str, policy: Policy, *, by: str, reason: str) -> None:
        self.run(c.SetPolicy(queue, policy, by, reason))

    def set_limit(self, name: str, terms: LimitTerms, *, by: str, reason: str) -> None:
        self.run(c.SetLimit(name, terms, by, reason))

    def clear_limit(self, name: str, *, by: str, reason: str) -> None:
        self.run(c.ClearLimit(name, by, reason))

    def declare_limits(self, limits: Mapping[str, LimitTerms], *, by: str) -> None:
        self.run(c.DeclareLimits([c.DeclaredLimit(name, terms) for name, terms in limits.items()], by))

    def prune(self, before: int, *, keep: int, limit: int = 1_000) -> int:
        return self.run(c.Prune(before, keep, limit))
