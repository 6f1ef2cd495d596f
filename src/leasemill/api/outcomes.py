"""What a handler raises to say how its run ended, when neither "done" nor "failed, try again" is meant.

Returning is success; any other exception is a failure that is retried as the job's policy says. These three are not
errors of Leasemill and stand outside its tree.
"""

from __future__ import annotations

from typing import Final

from leasemill.api.policy import Duration, microseconds

RELEASE_DELAY_S: Final = 1.0
INVALID_RESULT: Final = "InvalidResult: "
"""How the error of a job begins whose handler returned what cannot be kept."""


class Outcome(Exception):
    """The root of what a handler raises to choose its outcome."""


class Fail(Outcome):
    """The job can never succeed: FAILED at once, whatever retries are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Outcome):
    """Failed; try again after this delay instead of the random one. It uses a retry like any failure (F5)."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"retry after {delay}")
        self.reason = reason
        self.delay_us = microseconds("RetryAfter(delay)", delay)


class Release(Outcome):
    """Give the job back without a penalty: no retry is used.

    The delay keeps a job that is given back from being claimed again at once, by the same worker, without end; 0 asks
    for just that.
    """

    def __init__(self, delay: Duration = RELEASE_DELAY_S) -> None:
        super().__init__(f"released for {delay}")
        self.delay_us = microseconds("Release(delay)", delay)
