"""Leasemill: durable jobs for Python, held by a lease, fenced by a token, applied once.

The public names live here. Nothing heavy may be imported by this module: `leasemill --help` pays for it, so each name
is imported when it is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AcquireStatus",
    "App",
    "BacklogOrder",
    "Broken",
    "Call",
    "Context",
    "Fail",
    "FailStatus",
    "FixedLane",
    "Invalid",
    "JobCancelled",
    "JobConflict",
    "JobDead",
    "JobFailed",
    "JobHandle",
    "JobState",
    "JobType",
    "LeaseLost",
    "LeaseNotFound",
    "LeasemillError",
    "NoResult",
    "NotFound",
    "QueueRefused",
    "Refused",
    "Release",
    "Retry",
    "RetryAfter",
    "SucceedStatus",
    "TokenMismatch",
    "Unavailable",
    "WorkLease",
    "Worker",
    "WorkerStuck",
    "__version__",
    "open_store",
]

if TYPE_CHECKING:
    from leasemill.api.app import App
    from leasemill.api.context import Context
    from leasemill.api.job import Call, FixedLane, JobHandle, JobType
    from leasemill.api.outcomes import Fail, Release, RetryAfter
    from leasemill.api.policy import Retry
    from leasemill.api.worklease import AcquireStatus, FailStatus, SucceedStatus, WorkLease
    from leasemill.errors import (
        BacklogOrder,
        Broken,
        Invalid,
        JobCancelled,
        JobConflict,
        JobDead,
        JobFailed,
        LeaseLost,
        LeasemillError,
        LeaseNotFound,
        NoResult,
        NotFound,
        QueueRefused,
        Refused,
        TokenMismatch,
        Unavailable,
        WorkerStuck,
    )
    from leasemill.kernel.model import JobState
    from leasemill.store.base import open_store
    from leasemill.worker.worker import Worker
else:
    _HOMES = {
        "AcquireStatus": "leasemill.api.worklease",
        "App": "leasemill.api.app",
        "BacklogOrder": "leasemill.errors",
        "Broken": "leasemill.errors",
        "Call": "leasemill.api.job",
        "Context": "leasemill.api.context",
        "Fail": "leasemill.api.outcomes",
        "FailStatus": "leasemill.api.worklease",
        "FixedLane": "leasemill.api.job",
        "Invalid": "leasemill.errors",
        "JobCancelled": "leasemill.errors",
        "JobConflict": "leasemill.errors",
        "JobDead": "leasemill.errors",
        "JobFailed": "leasemill.errors",
        "JobHandle": "leasemill.api.job",
        "JobState": "leasemill.kernel.model",
        "JobType": "leasemill.api.job",
        "LeaseLost": "leasemill.errors",
        "LeaseNotFound": "leasemill.errors",
        "LeasemillError": "leasemill.errors",
        "NoResult": "leasemill.errors",
        "NotFound": "leasemill.errors",
        "QueueRefused": "leasemill.errors",
        "Refused": "leasemill.errors",
        "Release": "leasemill.api.outcomes",
        "Retry": "leasemill.api.policy",
        "RetryAfter": "leasemill.api.outcomes",
        "SucceedStatus": "leasemill.api.worklease",
        "TokenMismatch": "leasemill.errors",
        "Unavailable": "leasemill.errors",
        "WorkLease": "leasemill.api.worklease",
        "Worker": "leasemill.worker.worker",
        "WorkerStuck": "leasemill.errors",
        "open_store": "leasemill.store.base",
    }

    def __getattr__(name):
        from importlib import import_module  # noqa: PLC0415  (only when a name is first used)

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOMES})
