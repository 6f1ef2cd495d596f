"""`WorkLease`: exclusive, first-in first-out processing of offsets that the caller brings, domain by domain.

For consumers of a stream that schedule retries themselves: each domain has at most one offset in flight, a backlog
behind it, and a record of what has ended. A thin layer over acquire, ack and nack with the lease kept. All state is in
the store and none here, so an orchestrator that died continues where it was.
What must never happen here: a rule that the verbs do not have. Rule N12, over N8 to N11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NoReturn, assert_never

from leasemill.api.policy import SHORTEST_LEASE_US, Duration, microseconds
from leasemill.errors import BacklogOrder, LeaseNotFound, TokenMismatch
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import check_name, check_policy, check_text
from leasemill.kernel.model import SECOND, Job, JobState, OnFailure, Policy
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.base import Store
from leasemill.store.presence import new_worker_id

TOKEN: Final = re.compile(r"(?P<offset>\d{1,19})-.+", re.ASCII)
"""A token begins with its offset, so a report finds its job without reading the domain first."""


class AcquireStatus(StrEnum):
    """The result of `try_acquire`."""

    ACQUIRED = "ACQUIRED"
    ALREADY_ACQUIRED = "ALREADY_ACQUIRED"
    ENQUEUED = "ENQUEUED"
    ALREADY_PROCESSED = "ALREADY_PROCESSED"
    ALREADY_FAILED = "ALREADY_FAILED"


class SucceedStatus(StrEnum):
    """The result of `succeed`."""

    NO_BACKLOG = "NO_BACKLOG"
    NEXT_HINT = "NEXT_HINT"


class FailStatus(StrEnum):
    """The result of `fail`."""

    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    GIVE_UP_NO_BACKLOG = "GIVE_UP_NO_BACKLOG"
    GIVE_UP_NEXT_HINT = "GIVE_UP_NEXT_HINT"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The offset in flight, and the proof that it is the caller's."""

    offset: int
    token: str
    acquired_at: datetime
    """The time at which this offset was first acquired; failures and restarts do not change it."""
    retry_count: int
    """The number of times it has failed since."""
    fence: int
    """A number that rises with every acquisition in the store: receivers can refuse a lower one."""


@dataclass(frozen=True, slots=True)
class AcquireResult:
    """`lease` is set if the status is ACQUIRED or ALREADY_ACQUIRED."""

    status: AcquireStatus
    lease: LeaseRecord | None = None


@dataclass(frozen=True, slots=True)
class SucceedResult:
    """`next_offset` is set if the status is NEXT_HINT: a hint, it is not acquired."""

    status: SucceedStatus
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FailResult:
    """`next_offset` is set if the status is GIVE_UP_NEXT_HINT: a hint, it is not acquired."""

    status: FailStatus
    retry_count: int
    next_offset: int | None = None


class WorkLease:
    """The offsets of one queue. Threads and event loops may share one object; several may use one store.

    A failed offset is retried `max_retries` times (default: the queue's policy, else 3), then it has failed. The
    number applies from when an offset was first seen. A lease expires only if `lease` or the queue's policy sets its
    length. There must be one orchestrator for a domain: any caller that asks for the offset in flight gets its token.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        *,
        max_retries: int | None = None,
        lease: Duration | None = None,
        worker: str | None = None,
    ) -> None:
        check_name("queue", queue)
        self.queue = queue
        self.worker = worker or new_worker_id()
        check_text("worker", self.worker)
        self._store = store
        self._policy = Policy(
            max_retries=max_retries,
            lease_ttl_us=None if lease is None else microseconds("lease", lease, least_us=SHORTEST_LEASE_US),
            on_failure=OnFailure.CONTINUE,
        )
        check_policy(self._policy)

    def try_acquire(self, domain: str, offset: int) -> AcquireResult:
        """Acquire this offset, if it is next.

        ACQUIRED or ALREADY_ACQUIRED: the caller has it. ENQUEUED: another is in flight, this one waits behind it.
        ALREADY_PROCESSED, ALREADY_FAILED: it has ended. Raises BacklogOrder when nothing is in flight and another
        offset is next. May be repeated: after a report that raised Unavailable, this returns the offset's status.
        """
        request = self._request(domain, offset)
        (outcome,) = self._store.acquire([request])
        earlier_id = _acquired_earlier(outcome)
        return _acquire_result(request, outcome, self._store.job(earlier_id) if earlier_id else None)

    async def atry_acquire(self, domain: str, offset: int) -> AcquireResult:
        """`try_acquire` in async code."""
        request = self._request(domain, offset)
        (outcome,) = await self._store.arun(c.Acquire([request]))
        earlier_id = _acquired_earlier(outcome)
        return _acquire_result(request, outcome, await self._store.ajob(earlier_id) if earlier_id else None)

    def succeed(self, domain: str, token: str) -> SucceedResult:
        """The offset in flight has been processed; the domain is free. Acquires nothing.

        Raises TokenMismatch when another lease is in flight, LeaseNotFound when none is: also for a token that has
        been reported before.
        """
        (outcome,) = self._store.ack([self._success(domain, token)])
        return _succeed_result(outcome) or self._refuse(domain, self._store.lane(self.queue, domain))

    async def asucceed(self, domain: str, token: str) -> SucceedResult:
        """`succeed` in async code."""
        (outcome,) = await self._store.arun(c.Ack([self._success(domain, token)]))
        return _succeed_result(outcome) or self._refuse(domain, await self._store.arun(c.GetLane(self.queue, domain)))

    def succeed_then_acquire(self, domain: str, token: str, offset: int) -> AcquireResult:
        """`succeed` and then `try_acquire`: for a caller that continues with a known offset. PostgreSQL records both
        at once, in half the time.

        Raises as `succeed` does, then nothing is acquired; and BacklogOrder as `try_acquire` does, then the offset in
        flight has succeeded all the same.
        """
        request = self._request(domain, offset)
        _, acquired = self._store.ack_then_acquire(self._success(domain, token), request)
        if acquired is None:
            return self._refuse(domain, self._store.lane(self.queue, domain))
        earlier_id = _acquired_earlier(acquired)
        return _acquire_result(request, acquired, self._store.job(earlier_id) if earlier_id else None)

    async def asucceed_then_acquire(self, domain: str, token: str, offset: int) -> AcquireResult:
        """`succeed_then_acquire` in async code."""
        request = self._request(domain, offset)
        _, acquired = await self._store.aack_then_acquire(self._success(domain, token), request)
        if acquired is None:
            return self._refuse(domain, await self._store.arun(c.GetLane(self.queue, domain)))
        earlier_id = _acquired_earlier(acquired)
        return _acquire_result(request, acquired, await self._store.ajob(earlier_id) if earlier_id else None)

    def fail(self, domain: str, token: str, error: str = "failed") -> FailResult:
        """The offset in flight has failed. RETRY_SCHEDULED: it is still the caller's, to be retried when the
        caller decides. GIVE_UP_…: no retry was left, it has failed permanently and the domain is free.

        Raises as `succeed` does.
        """
        (outcome,) = self._store.nack([self._failure(domain, token, error)])
        return _fail_result(outcome) or self._refuse(domain, self._store.lane(self.queue, domain))

    async def afail(self, domain: str, token: str, error: str = "failed") -> FailResult:
        """`fail` in async code."""
        (outcome,) = await self._store.arun(c.Nack([self._failure(domain, token, error)]))
        return _fail_result(outcome) or self._refuse(domain, await self._store.arun(c.GetLane(self.queue, domain)))

    def _request(self, domain: str, offset: int) -> c.AcquireRequest:
        token = f"{offset}-{self._store.entropy.tokens(1)[0]}"
        return c.AcquireRequest(self.queue, domain, offset, self.worker, token, policy=self._policy)

    def _success(self, domain: str, token: str) -> c.AckReport:
        return c.AckReport(self._job_id(domain, token), token)

    def _failure(self, domain: str, token: str, error: str) -> c.NackReport:
        return c.NackReport(
            self._job_id(domain, token), token, error, keep_lease=True, report_id=self._store.entropy.new_id()
        )

    def _job_id(self, domain: str, token: str) -> str:
        match = TOKEN.fullmatch(token)
        # a token without an offset belongs to no job, and is refused like any other
        return offset_id(self.queue, domain, int(match["offset"])) if match else ""

    def _refuse(self, domain: str, lane: c.LaneView | None) -> NoReturn:
        """Raise why a report was refused: another lease is in flight, or none."""
        head = None if lane is None else lane.head
        if head is None or head.state is not JobState.LEASED:
            raise LeaseNotFound(domain)
        raise TokenMismatch(domain, head.spec.offset)


def _acquired_earlier(outcome: c.AcquireOutcome) -> str | None:
    """The job, if this is not its first acquisition: its lease expired, or an operator redrove it."""
    if isinstance(outcome, c.Acquired | c.AlreadyAcquired) and outcome.lease.attempt > 1:
        return outcome.lease.job.id
    return None


def _acquire_result(request: c.AcquireRequest, outcome: c.AcquireOutcome, job: Job | None) -> AcquireResult:
    match outcome:
        case c.Acquired(lease=lease):
            return AcquireResult(AcquireStatus.ACQUIRED, _lease_record(request.offset, lease, job))
        case c.AlreadyAcquired(lease=lease):
            # a store that lost its reply repeats the request: what this request acquired is new to the caller
            is_ours = lease.token == request.token
            status = AcquireStatus.ACQUIRED if is_ours else AcquireStatus.ALREADY_ACQUIRED
            return AcquireResult(status, _lease_record(request.offset, lease, job))
        case c.Backlogged():
            return AcquireResult(AcquireStatus.ENQUEUED)
        case c.AlreadyFinished(state=JobState.SUCCEEDED):
            return AcquireResult(AcquireStatus.ALREADY_PROCESSED)
        case c.AlreadyFinished():
            return AcquireResult(AcquireStatus.ALREADY_FAILED)
        case c.OutOfOrder(expected=expected):
            raise BacklogOrder(request.lane, expected.offset, request.offset)
        case _:
            assert_never(outcome)


def _lease_record(offset: int, lease: c.Lease, job: Job | None) -> LeaseRecord:
    first = lease.leased_at if job is None else job.executions[0].leased_at
    return LeaseRecord(offset, lease.token, datetime.fromtimestamp(first / SECOND, UTC), lease.retries, lease.fence)


def _succeed_result(outcome: c.AckOutcome) -> SucceedResult | None:
    """Return None if the report was refused. The verbs return the same for a repeat; here it finds no lease, and is an
    error."""
    if not isinstance(outcome, c.Acked) or outcome.is_repeat:
        return None
    if outcome.next_in_lane is None:
        return SucceedResult(SucceedStatus.NO_BACKLOG)
    return SucceedResult(SucceedStatus.NEXT_HINT, outcome.next_in_lane.offset)


def _fail_result(outcome: c.NackOutcome) -> FailResult | None:
    """Return None if the report was refused."""
    if not isinstance(outcome, c.Nacked):
        return None
    if outcome.state is JobState.LEASED:
        return FailResult(FailStatus.RETRY_SCHEDULED, outcome.retries)
    if outcome.state is not JobState.FAILED or outcome.is_repeat:
        return None
    if outcome.next_in_lane is None:
        return FailResult(FailStatus.GIVE_UP_NO_BACKLOG, outcome.retries)
    return FailResult(FailStatus.GIVE_UP_NEXT_HINT, outcome.retries, outcome.next_in_lane.offset)
