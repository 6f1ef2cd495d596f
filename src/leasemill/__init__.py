"""Leasemill: durable jobs for Python, held by a lease, fenced by a token, applied once.

The public names. Nothing heavy may be imported by this module, because `leasemill --help` pays for it: each name is
imported when it is first used. The errors import nothing else.
"""

from typing import TYPE_CHECKING

from leasemill.errors import (
    BacklogOrder,
    Broken,
    GroupRefused,
    Invalid,
    JobCancelled,
    JobConflict,
    JobDead,
    JobFailed,
    LeaseLost,
    LeasemillError,
    LeaseNotFound,
    LifespanFailed,
    NoResult,
    NotFound,
    QueueRefused,
    Refused,
    TokenMismatch,
    Unavailable,
    WorkerStuck,
)

__version__ = "0.2.0.dev0"

__all__ = [
    "ONCE_TABLE_SQL",
    "PREVIOUS",
    "AcquireStatus",
    "Action",
    "App",
    "AsyncContextJob",
    "AsyncJob",
    "AsyncTransaction",
    "BacklogOrder",
    "Broken",
    "Call",
    "Chain",
    "ChainHandle",
    "Context",
    "Debounce",
    "Fail",
    "FailStatus",
    "FixedLane",
    "GroupHandle",
    "GroupProgress",
    "GroupRefused",
    "GroupView",
    "Invalid",
    "Job",
    "JobCancelled",
    "JobConflict",
    "JobDead",
    "JobEvent",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobPage",
    "JobProgress",
    "JobState",
    "JobType",
    "KeyView",
    "LanePage",
    "LaneView",
    "LeaseLost",
    "LeaseNotFound",
    "LeaseView",
    "LeasemillError",
    "LifespanFailed",
    "Limit",
    "LimitTerms",
    "LimitView",
    "NoResult",
    "NotFound",
    "Observer",
    "Operated",
    "Order",
    "Outgoing",
    "Policy",
    "QueueRefused",
    "QueueView",
    "Rate",
    "Refused",
    "Release",
    "Retry",
    "RetryAfter",
    "ScheduleInfo",
    "Settled",
    "Store",
    "StreamCount",
    "SucceedStatus",
    "SyncContextJob",
    "SyncJob",
    "Throttle",
    "Throttled",
    "TokenMismatch",
    "Totals",
    "Transaction",
    "Unavailable",
    "Unique",
    "WorkLease",
    "Worker",
    "WorkerStuck",
    "__version__",
    "chain",
    "configure_logging",
    "next_ticks",
    "open_store",
]

if TYPE_CHECKING:
    from leasemill.api.app import App
    from leasemill.api.argument_keys import FixedLane
    from leasemill.api.arguments import PREVIOUS
    from leasemill.api.call import Call
    from leasemill.api.chain import Chain, ChainHandle, chain
    from leasemill.api.commit import AsyncTransaction, Transaction
    from leasemill.api.context import Context
    from leasemill.api.cron import next_ticks
    from leasemill.api.effects import ONCE_TABLE_SQL
    from leasemill.api.enqueue_batch import StreamCount
    from leasemill.api.group import GroupHandle, GroupProgress
    from leasemill.api.handle import JobHandle, JobProgress
    from leasemill.api.hooks import JobEvent, Outgoing
    from leasemill.api.job import JobType
    from leasemill.api.job_types import AsyncContextJob, AsyncJob, SyncContextJob, SyncJob
    from leasemill.api.limits import Limit, Rate
    from leasemill.api.logs import configure_logging
    from leasemill.api.observer import Observer, Settled
    from leasemill.api.outcomes import Fail, Release, RetryAfter, Throttled
    from leasemill.api.retry import Retry
    from leasemill.api.schedules import ScheduleInfo
    from leasemill.api.unique import Debounce, Throttle, Unique
    from leasemill.api.worklease import AcquireStatus, FailStatus, SucceedStatus, WorkLease
    from leasemill.kernel.model import Action, Job, JobState, LimitTerms, Order, Policy
    from leasemill.kernel.read.filter import JobFilter, Operated
    from leasemill.kernel.read.jobs import JobPage, KeyView, LeaseView
    from leasemill.kernel.read.queues import LanePage, LaneView, QueueView, Totals
    from leasemill.kernel.read.rules import GroupView, LimitView
    from leasemill.store.base import Store
    from leasemill.store.factory import open_store
    from leasemill.worker.worker import Worker
else:
    _MODULES = {
        "leasemill.api.app": ["App"],
        "leasemill.api.arguments": ["PREVIOUS"],
        "leasemill.api.call": ["Call"],
        "leasemill.api.chain": ["Chain", "ChainHandle", "chain"],
        "leasemill.api.commit": ["AsyncTransaction", "Transaction"],
        "leasemill.api.context": ["Context"],
        "leasemill.api.cron": ["next_ticks"],
        "leasemill.api.job_types": ["AsyncContextJob", "AsyncJob", "SyncContextJob", "SyncJob"],
        "leasemill.api.effects": ["ONCE_TABLE_SQL"],
        "leasemill.api.group": ["GroupProgress", "GroupHandle"],
        "leasemill.api.handle": ["JobHandle", "JobProgress"],
        "leasemill.api.job": ["JobType"],
        "leasemill.api.hooks": ["JobEvent", "Outgoing"],
        "leasemill.api.argument_keys": ["FixedLane"],
        "leasemill.api.limits": ["Limit", "Rate"],
        "leasemill.api.logs": ["configure_logging"],
        "leasemill.api.observer": ["Observer", "Settled"],
        "leasemill.api.outcomes": ["Fail", "Release", "RetryAfter", "Throttled"],
        "leasemill.api.retry": ["Retry"],
        "leasemill.api.schedules": ["ScheduleInfo"],
        "leasemill.api.enqueue_batch": ["StreamCount"],
        "leasemill.api.unique": ["Debounce", "Throttle", "Unique"],
        "leasemill.api.worklease": ["AcquireStatus", "FailStatus", "SucceedStatus", "WorkLease"],
        "leasemill.kernel.read.filter": ["JobFilter", "Operated"],
        "leasemill.kernel.model": ["Action", "Job", "JobState", "LimitTerms", "Order", "Policy"],
        "leasemill.kernel.read.jobs": ["JobPage", "KeyView", "LeaseView"],
        "leasemill.kernel.read.queues": ["LanePage", "LaneView", "QueueView", "Totals"],
        "leasemill.kernel.read.rules": ["GroupView", "LimitView"],
        "leasemill.store.base": ["Store"],
        "leasemill.store.factory": ["open_store"],
        "leasemill.worker.worker": ["Worker"],
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOMES})
