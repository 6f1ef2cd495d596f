"""The kernel's bounds of single fields, as a schema states them.

They are stated here too so that the reference shows them, and a wrong field is refused by its path. No number is
repeated: all come from `kernel.bounds`. The kernel has the last word, for it checks every command again. What must
never happen here: a bound that refuses what the kernel accepts.
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
    "priority": Meta(ge=0, le=b.HIGHEST_PRIORITY),
    "run_at": INSTANT,
    "delay_us": DURATION,
}

FIELDS: Final[dict[type[Struct], dict[str, Meta]]] = {
    JobSpec: {"id": Meta(max_length=b.TEXT_LENGTH), **_CALL},
    ChainedJob: {**_CALL, "result_name": TEXT},
    c.Followup: _CALL,
    Policy: {name: Meta(ge=least, le=most) for name, (least, most) in b.POLICY.items()},
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
    """The bound of this field of a request; None if only its type bounds it."""
    stated = FIELDS.get(struct, {}).get(field)
    if stated is not None or kind is not int:
        return stated
    return LIMIT if field == "limit" else INTEGER
