"""The events of jobs, their leases and their queues."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.model import EndingVerb, JobSpec, LossReason, Policy, ReportVerb, Terms


class Event(Struct, frozen=True, array_like=True, gc=False):
    """The common root; never stored itself."""


class JobEnqueued(Event, frozen=True, tag=1):
    """A job exists. Applying it for a known id changes nothing (E5)."""

    job: JobSpec
    at: int


class LeaseGranted(Event, frozen=True, tag=2):
    job_id: str
    attempt: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    at: int
    expires_at: int
    terms: Terms


class ExecutionStarted(Event, frozen=True, tag=3):
    job_id: str
    token: str
    at: int
    started_at: int


class LeaseExtended(Event, frozen=True, tag=4):
    job_id: str
    token: str
    at: int
    expires_at: int


class ExecutionCommitted(Event, frozen=True, tag=5):
    """The effect: the marker, the result and the follow-up jobs, in one fact."""

    job_id: str
    token: str
    at: int
    result: bytes | None
    followups: tuple[JobSpec, ...]


class ExecutionDone(Event, frozen=True, tag=6):
    """The job succeeded. Without an earlier commit this is also its commit, with `result`."""

    job_id: str
    token: str
    at: int
    ended_by: EndingVerb
    result: bytes | None
    error: str | None


class ExecutionFailed(Event, frozen=True, tag=7):
    """The handler failed. Final: FAILED; else READY again at `retry_at`."""

    job_id: str
    token: str
    at: int
    error: str
    is_final: bool
    blocks_lane: bool
    retry_at: int | None


class FailureKept(Event, frozen=True, tag=8):
    """The handler failed, a retry is counted, and the lease stays where it is."""

    job_id: str
    token: str
    at: int
    error: str
    report_id: str


class LeaseReleased(Event, frozen=True, tag=9):
    """The holder gave the job back; `error` says why it could not be run. Older logs lack the field."""

    job_id: str
    token: str
    at: int
    available_at: int
    error: str | None = None


class LeaseExpired(Event, frozen=True, tag=10):
    """Time took the lease. Final: the job is quarantined."""

    job_id: str
    token: str
    at: int
    is_final: bool
    blocks_lane: bool


class HolderDied(Event, frozen=True, tag=50):
    """The holder of the lease is proved to have ended. Final: the job is quarantined."""

    job_id: str
    token: str
    at: int
    is_final: bool
    blocks_lane: bool
    cause: str


class ReportRefused(Event, frozen=True, tag=11):
    job_id: str
    token: str
    verb: ReportVerb
    worker: str | None
    attempt: int | None
    current_attempt: int
    reason: LossReason
    at: int


class JobCancelled(Event, frozen=True, tag=12):
    """An operator cancelled the job: CANCELLED, unless it had committed and an ExecutionDone came first."""

    job_id: str
    at: int
    by: str
    reason: str


class JobRedriven(Event, frozen=True, tag=13):
    job_id: str
    at: int
    by: str
    reason: str


class JobPurged(Event, frozen=True, tag=14):
    job_id: str
    at: int
    by: str
    reason: str


class QueuePaused(Event, frozen=True, tag=15):
    queue: str
    at: int
    by: str
    reason: str


class QueueResumed(Event, frozen=True, tag=16):
    queue: str
    at: int
    by: str
    reason: str


class QueuePolicySet(Event, frozen=True, tag=17):
    queue: str
    at: int
    by: str
    reason: str
    policy: Policy


class JobsPruned(Event, frozen=True, tag=18):
    """Retention: these finished jobs are forgotten."""

    job_ids: tuple[str, ...]
    at: int


JobEvent: TypeAlias = (
    JobEnqueued
    | LeaseGranted
    | ExecutionStarted
    | LeaseExtended
    | ExecutionCommitted
    | ExecutionDone
    | ExecutionFailed
    | FailureKept
    | LeaseReleased
    | LeaseExpired
    | HolderDied
    | ReportRefused
    | JobCancelled
    | JobRedriven
    | JobPurged
    | QueuePaused
    | QueueResumed
    | QueuePolicySet
    | JobsPruned
)
