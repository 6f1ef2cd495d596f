"""The bounds of single fields, as a schema can state them. The kernel has the last word: it checks every command.

Stated here too so that the reference shows them, and that a wrong field is refused by its path.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Meta, Struct

from leasemill.kernel import bounds as b
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitUse, Policy, Rules, UniqueKey
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.wire import requests as r

NAME: Final = Meta(pattern=rf"^{b.NAME.pattern}$")
TEXT: Final = Meta(min_length=1, max_length=b.TEXT_LENGTH)
STRING: Final = Meta(max_length=b.STRING_LENGTH)
INTEGER: Final = Meta(ge=-(2**63), le=2**63 - 1)
LIMIT: Final = Meta(ge=1, le=b.BATCH_ITEMS)
INSTANT: Final = Meta(ge=0, le=b.LATEST)
DURATION: Final = Meta(ge=0, le=b.LONGEST_US)
BATCH: Final = Meta(max_length=b.BATCH_ITEMS)
WAIT: Final = Meta(ge=0, le=r.LONGEST_WAIT_S)

_CALL: Final = {
    "queue": NAME,
    "kind": NAME,
    "lane": TEXT,
    "priority": Meta(ge=0, le=9),
    "run_at": INSTANT,
    "delay_us": DURATION,
}

FIELDS: Final[dict[type[Struct], dict[str, Meta]]] = {
    JobSpec: {"id": Meta(max_length=b.TEXT_LENGTH), **_CALL},
    ChainedJob: {**_CALL, "result_name": TEXT},
    c.Followup: _CALL,
    Policy: {
        "max_retries": Meta(ge=0, le=1_000),
        "max_expirations": Meta(ge=1, le=1_000),
        "lease_ttl_us": Meta(ge=1_000, le=b.LONGEST_US),
        "timeout_us": Meta(ge=1, le=b.LONGEST_US),
        "backoff_base_us": DURATION,
        "backoff_cap_us": DURATION,
    },
    Rules: {"group": TEXT, "limits": Meta(max_length=b.LIMITS), "chain": Meta(max_length=b.CHAINED)},
    UniqueKey: {"key": TEXT, "keep_us": DURATION, "at_most_us": Meta(ge=1, le=b.LONGEST_US)},
    LimitUse: {"name": NAME, "key": TEXT},
    c.Enqueue: {"jobs": BATCH},
    c.Claim: {
        "worker": TEXT,
        "queues": Meta(min_length=1, max_length=b.BATCH_ITEMS),
        "tokens": BATCH,
        "request_id": TEXT,
        "slots": Meta(ge=0, le=b.BATCH_ITEMS),
        "wait_s": WAIT,
    },
    c.Start: {"reports": BATCH},
    c.Extend: {"leases": BATCH},
    c.Commit: {"followups": Meta(max_length=b.FOLLOWUPS)},
    c.Ack: {"reports": BATCH},
    c.Nack: {"reports": BATCH},
    c.Release: {"reports": BATCH},
    c.Death: {"reports": BATCH},
    c.Acquire: {"requests": BATCH},
    c.AcquireRequest: {
        "queue": NAME,
        "kind": NAME,
        "lane": TEXT,
        "worker": TEXT,
        "offset": Meta(ge=0, le=b.LARGEST_OFFSET),
    },
    c.NackReport: {"jitter": Meta(ge=0, lt=1), "delay_us": DURATION, "error": STRING, "report_id": STRING},
    c.ReleaseReport: {"delay_us": DURATION, "error": STRING},
    c.CreateGroup: {"group_id": TEXT, "parent": TEXT},
    ScheduleSpec: {"name": NAME},
    r.WatchQueues: {"queues": Meta(min_length=1, max_length=b.BATCH_ITEMS), "wait_s": WAIT},
    r.WatchEnd: {"wait_s": WAIT},
    r.WatchCancellations: {"wait_s": WAIT},
    r.PublishPresence: {"worker_id": TEXT},
}


def bound_of(struct: type[Struct], field: str, kind: Any) -> Meta | None:
    """What bounds this field of a request; None: its type alone."""
    stated = FIELDS.get(struct, {}).get(field)
    if stated is not None or kind is not int:
        return stated
    return LIMIT if field == "limit" else INTEGER
