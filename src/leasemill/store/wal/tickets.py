"""What a call of a folder's store weighs, before it joins a batch.

A call weighs as many bytes as it may add to the log, at most, which is known before it is decided. One that weighs too
much is refused alone, and a batch is cut before it gets too heavy for one frame. Tokens of other calls that its events
repeat are counted as short, as those are that a store draws; should they not be, the log refuses the whole batch.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.schedules import CALL_BYTES
from leasemill.store import pipeline
from leasemill.store.wal.format import LARGEST_BODY

HEAVIEST_CALL: Final = LARGEST_BODY - 16 * 1024 * 1024  # the rest is left for what is pruned with it
ITEM_BYTES: Final = 2_000  # an event's ids, names, policy and numbers: all that has a small limit of its own
CHARACTER_BYTES: Final = 4
TEXTS: Final = (str, bytes)
READS: Final = (
    c.GetJob,
    c.GetKey,
    c.ListJobs,
    c.ListQueues,
    c.GetLane,
    c.ListLanes,
    c.ListActions,
    c.ListLimits,
    c.GetLimit,
    c.GetGroup,
    c.ListGroups,
    c.GetTotals,
    c.GetTime,
    c.DueIn,
    c.GetSchedule,
    c.ListSchedules,
    c.DueSchedules,
    c.NextTick,
)

_encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # any sequence is as good as a list


class LogTicket(pipeline.Ticket):
    """No command: only catch up with what others wrote."""

    __slots__ = ("is_durable",)

    def __init__(self, command: Any, *, is_durable: bool = True) -> None:
        super().__init__(command, weigh(command))
        if self.weight > HEAVIEST_CALL:
            raise Invalid(f"{self.weight:,} bytes in one call; at most {HEAVIEST_CALL:,}: send smaller batches")
        self.is_durable = is_durable


def weigh(command: Any) -> int:
    """Readings and what is not a command weigh nothing. Of any other command each text may be in two events (a refused
    report and the expiry it records), a reason in the event of each item, and an item may lead to three events."""
    if command is None or isinstance(command, READS):
        return 0
    items = getattr(command, "limit", 1)
    for value in astuple(command):
        if hasattr(value, "__len__") and not isinstance(value, TEXTS):
            items = max(items, len(value))
    scheduled_bytes = getattr(command, "most_jobs", 0) * (CALL_BYTES + 3 * ITEM_BYTES)  # their calls are in the record
    reason_bytes = CHARACTER_BYTES * len(getattr(command, "reason", ""))
    return 2 * len(_encode(command)) + items * (3 * ITEM_BYTES + reason_bytes) + scheduled_bytes
