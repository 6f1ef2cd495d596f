"""Leasemill: durable jobs for Python, held by a lease, fenced by a token, applied once.

The public names live here. Nothing heavy may be imported by this module: `leasemill --help` pays for it, so each name
is imported when it is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AcquireStatus",
    "App",
    "Call",
    "Context",
    "Fail",
    "FailStatus",
    "FixedLane",
    "JobHandle",
    "JobState",
    "JobType",
    "Release",
    "Retry",
    "RetryAfter",
    "SucceedStatus",
    "WorkLease",
    "Worker",
    "__version__",
]

if TYPE_CHECKING:
    from leasemill.app import App
    from leasemill.context import Context
    from leasemill.job import Call, FixedLane, JobHandle, JobType
    from leasemill.kernel.model import JobState
    from leasemill.outcomes import Fail, Release, RetryAfter
    from leasemill.policy import Retry
    from leasemill.worker.worker import Worker
    from leasemill.worklease import AcquireStatus, FailStatus, SucceedStatus, WorkLease
else:
    _HOMES = {
        "AcquireStatus": "leasemill.worklease",
        "App": "leasemill.app",
        "Call": "leasemill.job",
        "Context": "leasemill.context",
        "Fail": "leasemill.outcomes",
        "FailStatus": "leasemill.worklease",
        "FixedLane": "leasemill.job",
        "JobHandle": "leasemill.job",
        "JobState": "leasemill.kernel.model",
        "JobType": "leasemill.job",
        "Release": "leasemill.outcomes",
        "Retry": "leasemill.policy",
        "RetryAfter": "leasemill.outcomes",
        "SucceedStatus": "leasemill.worklease",
        "WorkLease": "leasemill.worklease",
        "Worker": "leasemill.worker.worker",
    }

    def __getattr__(name):
        from importlib import import_module  # noqa: PLC0415  (only when a name is first used)

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOMES})
