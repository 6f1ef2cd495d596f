"""`WorkLease`: exclusive, first-in first-out processing of offsets that the caller brings, domain by domain.

For consumers of a stream that keep time themselves: each domain has at most one offset in flight, a backlog behind it,
and a memory of what has ended. A thin layer over acquire, ack and nack with the lease kept: what is in flight, waits or
has ended is the store's to know, nothing is remembered here, so an orchestrator that died goes on where it was.
What must never happen here: a rule of its own. Rule N12, over N8 to N11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, assert_never

from leasemill.api.policy import SHORTEST_LEASE_US, Duration, microseconds
from leasemill.errors import BacklogOrder, LeaseNotFound, Refused, TokenMismatch
from leasemill.kernel import commands as c
from leasemill.kernel.limits import check_name, check_policy, check_text
from leasemill.kernel.model import SECOND, Job, JobState, OnFailure, Policy
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.base import Store
from leasemill.store.presence import new_worker_id

TOKEN: Final = re.compile(r"(?P<offset>\d{1,19})-.+", re.ASCII)
"""A token begins with its offset, so that a report finds its job without asking where the domain stands."""


class AcquireStatus(StrEnum):
    """What `try_acquire` answers."""

    ACQUIRED = "ACQUIRED"
    ALREADY_ACQUIRED = "ALREADY_ACQUIRED"
    ENQUEUED = "ENQUEUED"
    ALREADY_PROCESSED = "ALREADY_PROCESSED"
    ALREADY_FAILED = "ALREADY_FAILED"


class SucceedStatus(StrEnum):
    """What `succeed` answers."""

    NO_BACKLOG = "NO_BACKLOG"
    NEXT_HINT = "NEXT_HINT"


class FailStatus(StrEnum):
    """What `fail` answers."""

    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    GIVE_UP_NO_BACKLOG = "GIVE_UP_NO_BACKLOG"
    GIVE_UP_NEXT_HINT = "GIVE_UP_NEXT_HINT"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The offset in flight, and the proof that it is the caller's."""

    offset: int
    token: str
    acquired_at: datetime
    """When this offset was first acquired; failures and restarts do not move it."""
    retry_count: int
    """How many times it has failed since."""
    fence: int
    """A number that rises with every acquisition in the store: others can refuse what comes with a lower one."""


@dataclass(frozen=True, slots=True)
class AcquireResult:
    """`lease` is there when the status is ACQUIRED or ALREADY_ACQUIRED."""

    status: AcquireStatus
    lease: LeaseRecord | None = None


@dataclass(frozen=True, slots=True)
class SucceedResult:
    """`next_offset` is there when the status is NEXT_HINT: a hint, it is not acquired."""

    status: SucceedStatus
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FailResult:
    """`next_offset` is there when the status is GIVE_UP_NEXT_HINT: a hint, it is not acquired."""

    status: FailStatus
    retry_count: int
    next_offset: int | None = None


class WorkLease:
    """The offsets of one queue. Threads and event loops may share one object; two may stand on one store.

    A failed offset is retried `max_retries` times (the queue's policy, else 3, unless given), then it has failed. The
    number holds from when an offset was first seen. A lease ends by time only if `lease` says when, or the queue's
    policy does. There must be one orchestrator for a domain: whoever asks for the offset in flight is given its token.
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
        """Take this offset, if it is its turn.

        ACQUIRED or ALREADY_ACQUIRED: the caller has it. ENQUEUED: another is in flight, this one waits behind it.
        ALREADY_PROCESSED, ALREADY_FAILED: it has ended. Raises BacklogOrder when nothing is in flight and another
        offset is next. May be repeated: when a report got no answer, this says where the offset stands.
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
        """The offset in flight has been processed; the domain is free. Hands nothing over.

        Raises TokenMismatch when another lease is in flight, LeaseNotFound when none is: also for a token that has
        been reported before.
        """
        (outcome,) = self._store.ack([self._success(domain, token)])
        result = _succeed_result(outcome)
        if result is None:
            raise self._refusal(domain, self._store.lane(self.queue, domain))
        return result

    async def asucceed(self, domain: str, token: str) -> SucceedResult:
        """`succeed` in async code."""
        (outcome,) = await self._store.arun(c.Ack([self._success(domain, token)]))
        result = _succeed_result(outcome)
        if result is None:
            raise self._refusal(domain, await self._store.arun(c.GetLane(self.queue, domain)))
        return result

    def fail(self, domain: str, token: str, error: str = "failed") -> FailResult:
        """The offset in flight has failed. RETRY_SCHEDULED: it is still the caller's, to be tried again when the
        caller thinks fit. GIVE_UP_…: no retry was left, it has failed for good and the domain is free.

        Raises as `succeed` does.
        """
        (outcome,) = self._store.nack([self._failure(domain, token, error)])
        result = _fail_result(outcome)
        if result is None:
            raise self._refusal(domain, self._store.lane(self.queue, domain))
        return result

    async def afail(self, domain: str, token: str, error: str = "failed") -> FailResult:
        """`fail` in async code."""
        (outcome,) = await self._store.arun(c.Nack([self._failure(domain, token, error)]))
        result = _fail_result(outcome)
        if result is None:
            raise self._refusal(domain, await self._store.arun(c.GetLane(self.queue, domain)))
        return result

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
        # a token that names no offset is nobody's: it must name no job either, and be refused like any other
        return offset_id(self.queue, domain, int(match["offset"])) if match else ""

    def _refusal(self, domain: str, lane: c.LaneView | None) -> Refused:
        """Why a report was refused: somebody else's lease is in flight, or none."""
        head = None if lane is None else lane.head
        if head is None or head.state is not JobState.LEASED:
            return LeaseNotFound(domain)
        return TokenMismatch(domain, head.spec.offset)


def _acquired_earlier(outcome: c.AcquireOutcome) -> str | None:
    """The job whose first acquisition is not this one: its lease has run out, or an operator gave it back."""
    if isinstance(outcome, c.Acquired | c.AlreadyAcquired) and outcome.lease.attempt > 1:
        return outcome.lease.job.id
    return None


def _acquire_result(request: c.AcquireRequest, outcome: c.AcquireOutcome, job: Job | None) -> AcquireResult:
    match outcome:
        case c.Acquired(lease=lease):
            return AcquireResult(AcquireStatus.ACQUIRED, _lease_record(request.offset, lease, job))
        case c.AlreadyAcquired(lease=lease):
            # a store that lost its reply asks again: what this very request acquired is new to the caller
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
    """None: refused. The verbs answer a repeat as they did before; here it finds no lease, and is a mistake."""
    if not isinstance(outcome, c.Acked) or outcome.is_repeat:
        return None
    if outcome.next_in_lane is None:
        return SucceedResult(SucceedStatus.NO_BACKLOG)
    return SucceedResult(SucceedStatus.NEXT_HINT, outcome.next_in_lane.offset)


def _fail_result(outcome: c.NackOutcome) -> FailResult | None:
    """None: refused."""
    if not isinstance(outcome, c.Nacked):
        return None
    if outcome.state is JobState.LEASED:
        return FailResult(FailStatus.RETRY_SCHEDULED, outcome.retries)
    if outcome.state is not JobState.FAILED or outcome.is_repeat:
        return None
    if outcome.next_in_lane is None:
        return FailResult(FailStatus.GIVE_UP_NO_BACKLOG, outcome.retries)
    return FailResult(FailStatus.GIVE_UP_NEXT_HINT, outcome.retries, outcome.next_in_lane.offset)
