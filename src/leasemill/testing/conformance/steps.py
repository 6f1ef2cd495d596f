"""The steps the tests are made of: one verb on one job, with the answer that the step's name promises.

Every step asks the harness for its store again, so that a store can be reopened between any two of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from leasemill.kernel.commands import (
    Acked,
    AckOutcome,
    AckReport,
    Acquired,
    AcquireOutcome,
    AcquireRequest,
    Cancelled,
    CancelOutcome,
    CommitOutcome,
    Committed,
    DeathOutcome,
    DeathReport,
    Died,
    Enqueued,
    EnqueueOutcome,
    Expiration,
    Extended,
    ExtendOutcome,
    Followup,
    JobFilter,
    LaneView,
    Lease,
    LeaseRef,
    Lost,
    Nacked,
    NackOutcome,
    NackReport,
    Operated,
    QueueView,
    Released,
    ReleaseOutcome,
    ReleaseReport,
    Started,
    StartOutcome,
    StartReport,
)
from leasemill.kernel.model import (
    SECOND,
    Action,
    Execution,
    ExecutionStatus,
    Job,
    JobSpec,
    JobState,
    LossReason,
    Policy,
    Verb,
)
from leasemill.testing.conformance.harness import Harness

CAUSE: Final = "worker worker-1 ended: exit status 137, seen by its supervisor"
QUEUE: Final = "work"
OFFSETS: Final = "offsets"
LANE: Final = "A"
WORKER: Final = "worker-1"
OTHER: Final = "worker-2"
LEASE_US: Final = 30 * SECOND
OPERATOR: Final = "ada"
WHY: Final = "because"

OutcomeT = TypeVar("OutcomeT")
ExpectedT = TypeVar("ExpectedT")


def expect(expected: type[ExpectedT], outcome: object) -> ExpectedT:
    """The outcome, which must be of this kind."""
    assert isinstance(outcome, expected), outcome
    return outcome


def only(outcomes: Sequence[OutcomeT]) -> OutcomeT:
    """The one outcome of a batch of one."""
    assert len(outcomes) == 1, outcomes
    return outcomes[0]


def new_token() -> str:
    return uuid.uuid4().hex


# Jobs and claims -----------------------------------------------------------------------------------------------


def spec(job_id: str = "job", **fields: Any) -> JobSpec:
    return JobSpec(job_id, fields.pop("queue", QUEUE), fields.pop("kind", "kind"), **fields)


def enqueue(harness: Harness, job: JobSpec) -> EnqueueOutcome:
    return only(harness.store.enqueue([job]))


def enqueue_one(harness: Harness, job_id: str = "job", **fields: Any) -> JobSpec:
    """Enqueue a job that was not known."""
    job = spec(job_id, **fields)
    assert enqueue(harness, job) == Enqueued(job_id)
    return job


def enqueue_many(harness: Harness, *job_ids: str, **fields: Any) -> None:
    for job_id in job_ids:
        enqueue_one(harness, job_id, **fields)


def claim(harness: Harness, limit: int = 1, *, worker: str = WORKER, queues: Sequence[str] = (QUEUE,)) -> list[Lease]:
    return harness.store.claim(worker, queues, limit)


def claim_one(harness: Harness, *, worker: str = WORKER, queue: str = QUEUE) -> Lease:
    """Claim the one job that is next."""
    return only(claim(harness, worker=worker, queues=[queue]))


def claim_nothing(harness: Harness, *queues: str) -> None:
    """There is nothing to claim."""
    assert claim(harness, 100, worker=OTHER, queues=queues or (QUEUE,)) == []


def claim_ids(harness: Harness, limit: int = 100, *queues: str) -> list[str]:
    return [lease.job.id for lease in claim(harness, limit, queues=queues or (QUEUE,))]


def enqueue_and_claim(harness: Harness, job_id: str = "job", **fields: Any) -> Lease:
    job = enqueue_one(harness, job_id, **fields)
    lease = claim_one(harness, queue=job.queue)
    assert lease.job.id == job_id
    return lease


def acquire(harness: Harness, offset: int, **fields: Any) -> AcquireOutcome:
    request = AcquireRequest(
        fields.pop("queue", OFFSETS),
        fields.pop("lane", LANE),
        offset,
        fields.pop("worker", WORKER),
        fields.pop("token", new_token()),
        **fields,
    )
    return only(harness.store.acquire([request]))


def acquire_one(harness: Harness, offset: int, **fields: Any) -> Lease:
    """Acquire an offset that can be had."""
    return expect(Acquired, acquire(harness, offset, **fields)).lease


# Reports -------------------------------------------------------------------------------------------------------


def start(harness: Harness, lease: Lease, age_us: int = 0) -> StartOutcome:
    return only(harness.store.start([StartReport(lease.job.id, lease.token, age_us)]))


def extend(harness: Harness, lease: Lease) -> ExtendOutcome:
    return only(harness.store.extend([LeaseRef(lease.job.id, lease.token)]))


def commit(
    harness: Harness, lease: Lease, *, result: bytes | None = None, followups: Sequence[Followup] = ()
) -> CommitOutcome:
    return harness.store.commit(lease.job.id, lease.token, result=result, followups=followups)


def ack(harness: Harness, lease: Lease, result: bytes | None = None) -> AckOutcome:
    return only(harness.store.ack([AckReport(lease.job.id, lease.token, result)]))


def nack(harness: Harness, lease: Lease, error: str = "it broke", **fields: Any) -> NackOutcome:
    return only(harness.store.nack([NackReport(lease.job.id, lease.token, error, **fields)]))


def keep(harness: Harness, lease: Lease, report_id: str, error: str = "it broke") -> NackOutcome:
    """Fail and keep the lease."""
    return nack(harness, lease, error, keep_lease=True, report_id=report_id)


def release(harness: Harness, lease: Lease, delay_us: int | None = None, error: str | None = None) -> ReleaseOutcome:
    return only(harness.store.release([ReleaseReport(lease.job.id, lease.token, delay_us, error)]))


def expire(harness: Harness, limit: int = 100) -> list[Expiration]:
    return harness.store.expire(limit)


def death(harness: Harness, lease: Lease, cause: str = CAUSE) -> DeathOutcome:
    return only(harness.store.death([DeathReport(lease.job.id, lease.token, cause)]))


def started(harness: Harness, lease: Lease) -> None:
    expect(Started, start(harness, lease))


def extended(harness: Harness, lease: Lease) -> int:
    """Extend a held lease; answers until when."""
    return expect(Extended, extend(harness, lease)).expires_at


def committed(harness: Harness, lease: Lease, **fields: Any) -> Committed:
    return expect(Committed, commit(harness, lease, **fields))


def acked(harness: Harness, lease: Lease, result: bytes | None = None) -> Acked:
    return expect(Acked, ack(harness, lease, result))


def nacked(harness: Harness, lease: Lease, error: str = "it broke", **fields: Any) -> Nacked:
    return expect(Nacked, nack(harness, lease, error, **fields))


def released(harness: Harness, lease: Lease, delay_us: int | None = None, error: str | None = None) -> Released:
    return expect(Released, release(harness, lease, delay_us, error))


def failed_for_good(harness: Harness, lease: Lease, error: str = "it broke") -> Nacked:
    outcome = nacked(harness, lease, error, is_permanent=True)
    assert outcome.state is JobState.FAILED
    return outcome


def let_expire(harness: Harness, lease: Lease) -> None:
    """Let time pass until the lease has just expired, and no command has recorded it."""
    harness.clock.advance(us=lease.expires_at - harness.clock.now())


def expired(harness: Harness, lease: Lease) -> Expiration:
    """Time takes the lease, and expire records it."""
    let_expire(harness, lease)
    return only([one for one in expire(harness) if one.job_id == lease.job.id])


def died(harness: Harness, lease: Lease) -> Died:
    """The holder is proved to have ended."""
    return expect(Died, death(harness, lease))


REPORTS: Final[dict[Verb, Callable[[Harness, Lease], object]]] = {
    Verb.START: start,
    Verb.EXTEND: extend,
    Verb.COMMIT: commit,
    Verb.ACK: ack,
    Verb.NACK: nack,
    Verb.RELEASE: release,
}
"""The verbs that need a held lease."""


def refused(outcome: object, reason: LossReason | None = None) -> Lost:
    """The report was refused, for this reason."""
    lost = expect(Lost, outcome)
    assert reason is None or lost.reason is reason, lost
    return lost


# The operator's ------------------------------------------------------------------------------------------------


def cancel(harness: Harness, job_id: str = "job", *, by: str = OPERATOR, reason: str = WHY) -> CancelOutcome:
    return only(harness.store.cancel([job_id], by=by, reason=reason))


def cancelled(harness: Harness, job_id: str = "job") -> Cancelled:
    return expect(Cancelled, cancel(harness, job_id))


def redrive(harness: Harness, *job_ids: str, limit: int = 100, include_cancelled: bool = False) -> Operated:
    return harness.store.redrive(
        JobFilter(job_ids=job_ids), by=OPERATOR, reason=WHY, limit=limit, include_cancelled=include_cancelled
    )


def purge(harness: Harness, *job_ids: str, limit: int = 100) -> Operated:
    return harness.store.purge(JobFilter(job_ids=job_ids), by=OPERATOR, reason=WHY, limit=limit)


def pause(harness: Harness, queue: str = QUEUE) -> None:
    harness.store.pause(queue, by=OPERATOR, reason=WHY)


def resume(harness: Harness, queue: str = QUEUE) -> None:
    harness.store.resume(queue, by=OPERATOR, reason=WHY)


def set_policy(harness: Harness, policy: Policy, queue: str = QUEUE) -> None:
    harness.store.set_policy(queue, policy, by=OPERATOR, reason=WHY)


# Reading -------------------------------------------------------------------------------------------------------


def job_of(harness: Harness, job_id: str = "job") -> Job:
    job = harness.store.job(job_id)
    assert job is not None, f"there is no job {job_id}"
    return job


def state_of(harness: Harness, job_id: str = "job") -> JobState:
    return job_of(harness, job_id).state


def last_execution(harness: Harness, job_id: str = "job") -> Execution:
    return job_of(harness, job_id).executions[-1]


def status_of(harness: Harness, job_id: str = "job") -> ExecutionStatus:
    return last_execution(harness, job_id).status


def lane_of(harness: Harness, lane: str = LANE, queue: str = QUEUE) -> LaneView:
    view = harness.store.lane(queue, lane)
    assert view is not None, f"there is no lane {queue}/{lane}"
    return view


def every_job(harness: Harness, where: JobFilter | None = None, *, limit: int = 100) -> list[Job]:
    """Read all jobs that fit, page after page."""
    jobs: list[Job] = []
    after: int | None = 0
    while after is not None:
        page = harness.store.jobs(where or JobFilter(), limit=limit, after=after)
        assert len(page.jobs) <= limit
        jobs += page.jobs
        after = page.after
    return jobs


def everything(harness: Harness) -> tuple[list[Job], list[QueueView], LaneView | None, list[Action]]:
    """Read everything: it is the same before and after a step that changes nothing."""
    return every_job(harness), harness.store.queues(), harness.store.lane(OFFSETS, LANE), harness.store.actions()
