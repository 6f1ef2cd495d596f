"""Every error Leasemill raises, by two questions: did it happen, and may the caller try again?

LeasemillError
├── Refused            it did not happen and never will: repeating the call is pointless
│   ├── Invalid        the input itself is wrong (also a ValueError)
│   ├── JobConflict    the id is known with other content
│   ├── LeaseLost      the lease is no longer the caller's
│   ├── QueueRefused   the queue is used with acquire, or with claim, and this call is the other
│   ├── GroupRefused   the group is unknown, sealed, or exists with other content
│   ├── NotFound       no such job, queue or group
│   ├── BacklogOrder   another offset of the domain is next (the three of WorkLease)
│   ├── TokenMismatch  another lease of the domain is in flight
│   └── LeaseNotFound  no lease of the domain is in flight
├── NoResult           the job has ended and there is no result to give
│   ├── JobFailed      retries used up, or its handler reported that it can never succeed
│   ├── JobDead        quarantined: too many of its runs ended with their worker
│   └── JobCancelled   cancelled by an operator
├── LifespanFailed     the lifespan of an app failed: its worker claimed nothing, or stopped
├── WorkerStuck        every slot of a worker is taken by a handler that does not return: restart the worker
├── Unavailable        unknown whether it happened: repeat with the same ids
└── Broken             stop: the stored data is damaged or of an unknown format
"""

from __future__ import annotations


class LeasemillError(Exception):
    """The root of every error raised by Leasemill."""


class Refused(LeasemillError):
    """It did not happen and never will."""


class Invalid(Refused, ValueError):
    """The input is wrong; the message says what to write instead. `field`, `limit`: what is wrong, what it may be."""

    def __init__(self, message: str, *, field: str | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.limit = limit


class JobConflict(Refused):
    """A job with this id exists with other content."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} exists with other content; use a new id, or enqueue the same content again")
        self.job_id = job_id


class LeaseLost(Refused):
    """The lease is no longer the caller's; the report changed nothing."""

    def __init__(self, job_id: str, verb: str, reason: str, attempt: int | None, current_attempt: int) -> None:
        held = "an unknown token" if attempt is None else f"attempt {attempt}"
        super().__init__(
            f"{verb} of job {job_id!r} by {held} refused: lease lost ({reason}); "
            f"the latest attempt is {current_attempt}"
        )
        self.job_id = job_id
        self.verb = verb
        self.reason = reason
        self.attempt = attempt
        self.current_attempt = current_attempt


class QueueRefused(Refused):
    """The queue is used with acquire and this call is not, or the other way round."""


class GroupRefused(Refused):
    """The group is unknown or takes no more members, or its id is known with other content."""


class NotFound(Refused):
    """No such job, queue or group."""


class BacklogOrder(Refused):
    """An offset was acquired that is not the next of its domain."""

    def __init__(self, domain: str, expected: int | None, got: int) -> None:
        super().__init__(f"offset {got} of domain {domain!r} is not next: acquire {expected} first")
        self.domain = domain
        self.expected = expected
        self.got = got


class TokenMismatch(Refused):
    """The domain's lease has another token; the report changed nothing."""

    def __init__(self, domain: str, offset: int | None) -> None:
        super().__init__(
            f"domain {domain!r} has offset {offset} in flight, under another token; "
            "try_acquire returns which offset is next"
        )
        self.domain = domain
        self.offset = offset


class LeaseNotFound(Refused):
    """Nothing of the domain is in flight; the report changed nothing."""

    def __init__(self, domain: str) -> None:
        super().__init__(
            f"domain {domain!r} has nothing in flight: it was never acquired, or has been reported before; "
            "try_acquire returns the status of an offset"
        )
        self.domain = domain


class NoResult(LeasemillError):
    """The job has ended without a result."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id!r} {why}")
        self.job_id = job_id


class JobFailed(NoResult):
    """The job ended FAILED; `error` is what its last attempt reported."""

    def __init__(self, job_id: str, error: str) -> None:
        super().__init__(job_id, f"failed: {error}")
        self.error = error


class JobDead(NoResult):
    """The job was quarantined."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(job_id, f"is dead: {why}")
        self.why = why


class JobCancelled(NoResult):
    """An operator cancelled the job."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(job_id, f"was cancelled: {why}")
        self.why = why


class LifespanFailed(LeasemillError):
    """The lifespan of an app failed to start, to stop, or ended by itself; the cause is what it raised."""


class WorkerStuck(LeasemillError):
    """A worker stopped because all its slots are stuck; its jobs were released."""


class Unavailable(LeasemillError):
    """The store cannot be reached or cannot write; repeat the call with the same ids."""


class Broken(LeasemillError):
    """What is stored is damaged or of an unknown format; nothing is written until a person has repaired it."""
