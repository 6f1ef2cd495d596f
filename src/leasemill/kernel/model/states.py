"""The states of jobs, executions and queues, and the reasons why an execution or a lease ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """READY jobs wait (for a worker, a time or a retry), LEASED jobs are held by a worker, the others have ended."""

    READY = "ready"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """True if the job is SUCCEEDED, FAILED, DEAD or CANCELLED: nothing runs it again unless it is redriven."""
        return self in ENDED_STATES


REDRIVEN_STATES: Final = frozenset({JobState.FAILED, JobState.DEAD})
UNSUCCESSFUL_STATES: Final = REDRIVEN_STATES | {JobState.CANCELLED}
ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.SUCCEEDED}
UNENDED_STATES: Final = frozenset({JobState.READY, JobState.LEASED})


class ExecutionStatus(StrEnum):
    LEASED = "leased"
    STARTED = "started"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


LIVE: Final = frozenset({ExecutionStatus.LEASED, ExecutionStatus.STARTED, ExecutionStatus.COMMITTED})


class AbortReason(StrEnum):
    EXPIRED = "expired"
    FAILED = "failed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    DIED = "died"


class LossReason(StrEnum):
    """The reason why a lease is no longer the caller's."""

    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    ENDED = "ended"
    CANCELLED = "cancelled"
    DIED = "died"
    UNKNOWN = "unknown"


class QueueMode(StrEnum):
    """The verb by which a queue's jobs are taken; fixed by its first job."""

    CLAIM = "claim"
    ACQUIRE = "acquire"
