"""Exceptions that a handler raises to choose its outcome, if that is neither success nor an ordinary failure.

Returning is success; any other exception is a failure that is retried according to the job's policy. These four are
not errors of Leasemill and are not in its tree.
"""

from __future__ import annotations

from typing import Final

from leasemill.api.policy import Duration, microseconds
from leasemill.kernel.verbs.limits import check_declared_name

RELEASE_DELAY_S: Final = 1.0
INVALID_RESULT: Final = "InvalidResult: "
"""The beginning of the error of a job whose handler returned an invalid result."""


class Outcome(Exception):
    """The root of what a handler raises to choose its outcome."""


class Fail(Outcome):
    """The job can never succeed: it is FAILED at once, even if retries are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Outcome):
    """The run failed: retry it after this delay instead of a random one. It uses a retry like any failure (F5)."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"retry after {delay}")
        self.reason = reason
        self.delay_us = microseconds("RetryAfter(delay)", delay)


class Release(Outcome):
    """Give the job back without using a retry.

    The delay keeps the same worker from claiming the job again at once, over and over; 0 allows that.
    """

    def __init__(self, delay: Duration = RELEASE_DELAY_S) -> None:
        super().__init__(f"released for {delay}")
        self.delay_us = microseconds("Release(delay)", delay)


class Throttled(Outcome):
    """The service that a limit protects asked for a pause, such as a 429: no job under it starts for this long (T13).

    The job is given back without using a retry, and is first when the pause is over. If the limit counts for each key,
    the pause applies only to this job's key.
    """

    def __init__(self, limit: str, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"throttled under limit {limit} for {delay}")
        check_declared_name(limit)
        self.limit = limit
        self.reason = reason
        self.hold_us = microseconds("Throttled(delay)", delay)
