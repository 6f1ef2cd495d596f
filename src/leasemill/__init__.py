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
    from leasemill.api.app import App
    from leasemill.api.context import Context
    from leasemill.api.job import Call, FixedLane, JobHandle, JobType
    from leasemill.api.outcomes import Fail, Release, RetryAfter
    from leasemill.api.policy import Retry
    from leasemill.api.worklease import AcquireStatus, FailStatus, SucceedStatus, WorkLease
    from leasemill.kernel.model import JobState
    from leasemill.worker.worker import Worker
else:
    _HOMES = {
        "AcquireStatus": "leasemill.api.worklease",
        "App": "leasemill.api.app",
        "Call": "leasemill.api.job",
        "Context": "leasemill.api.context",
        "Fail": "leasemill.api.outcomes",
        "FailStatus": "leasemill.api.worklease",
        "FixedLane": "leasemill.api.job",
        "JobHandle": "leasemill.api.job",
        "JobState": "leasemill.kernel.model",
        "JobType": "leasemill.api.job",
        "Release": "leasemill.api.outcomes",
        "Retry": "leasemill.api.policy",
        "RetryAfter": "leasemill.api.outcomes",
        "SucceedStatus": "leasemill.api.worklease",
        "WorkLease": "leasemill.api.worklease",
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
