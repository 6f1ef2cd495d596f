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
from leasemill.kernel.read import ANSWERS
from leasemill.kernel.verbs.schedules import CALL_BYTES
from leasemill.store import pipeline
from leasemill.store.file.format import LARGEST_BODY

HEAVIEST_CALL: Final = LARGEST_BODY - 16 * 1024 * 1024  # the rest is left for what is pruned with it
ITEM_BYTES: Final = 2_000  # an event's ids, names, policy and numbers: all that has a small limit of its own
CHARACTER_BYTES: Final = 4
TEXTS: Final = (str, bytes)
READS: Final = frozenset(ANSWERS)

_encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # any sequence is as good as a list


class LogTicket(pipeline.Ticket, eq=False):
    """No command: only catch up with what others wrote, for `within_s`, if others have published where they are; then
    the answer is that. `are_plain`: new jobs without rules, which are decided on, and headers, which need a newer
    format."""

    is_durable: bool = True
    within_s: float | None = None
    are_plain: bool = False
    sets_clock: bool = False
    """The folder's clock is set to the machine's before the command is decided (W17)."""

    def __post_init__(self) -> None:
        command = self.command
        weight = _weigh_plain(command) if type(command) is c.Enqueue else None
        if weight is None:
            weight = weigh(command)
        else:
            self.are_plain = command.are_new
        if weight > HEAVIEST_CALL:
            raise Invalid(f"{weight:,} bytes in one call; at most {HEAVIEST_CALL:,}: send smaller batches")
        self.weight = weight


def weigh(command: Any) -> int:
    """Readings and what is not a command weigh nothing. Of any other command each text may be in two events (a refused
    report and the expiry it records), a reason in the event of each item, and an item may lead to three events."""
    if command is None or type(command) in READS:
        return 0
    items = getattr(command, "limit", 1)
    for value in astuple(command):
        if hasattr(value, "__len__") and not isinstance(value, TEXTS):
            items = max(items, len(value))
    scheduled_bytes = getattr(command, "most_jobs", 0) * (CALL_BYTES + 3 * ITEM_BYTES)  # their calls are in the record
    reason_bytes = CHARACTER_BYTES * len(getattr(command, "reason", ""))
    return 2 * len(_encode(command)) + items * (3 * ITEM_BYTES + reason_bytes) + scheduled_bytes


def _weigh_plain(command: c.Enqueue) -> int | None:
    """Weigh jobs without rules and headers: only their payload has no small limit, so nothing is encoded."""
    weight = 0
    for job in command.jobs:
        if job.rules is not None or job.headers is not None:
            return None
        weight += 2 * len(job.payload) + 3 * ITEM_BYTES
    return weight
