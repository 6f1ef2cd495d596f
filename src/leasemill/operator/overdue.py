"""Schedules and groups that may need an operator: ticks that no worker fires or will fire, and groups that are open."""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec import Struct

from leasemill.api.cron import next_tick_after
from leasemill.api.schedule_commands import list_schedules
from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND
from leasemill.kernel.schedule import Schedule
from leasemill.operator.paging import all_groups
from leasemill.store.base import Store

LATE_US: Final = 10 * SECOND
"""A worker reads every 5 s which schedules were set elsewhere (P9): one that is due for longer is not just about to be
fired."""
GROUPS_COUNTED: Final = 10_000


class OpenGroups(Struct, frozen=True):
    """Groups that are not over, at most 10,000 of them. `unsealed`: those that never end by themselves (B3)."""

    count: int
    unsealed: int


def late_schedules(store: Store) -> dict[str, int]:
    """The schedules that are late, with by how many microseconds; the longest first.

    One is late when its next tick is overdue. It is also late when its next tick lies so far ahead that ticks before it
    will not be fired, because a clock was wrong: by the time from the first of those to its next tick."""
    now = store.time()
    late = {one.spec.name: _late_us(one, now) for one in list_schedules(store) if one.pause is None}
    return {name: us for name, us in sorted(late.items(), key=lambda it: (-it[1], it[0])) if us > LATE_US}


def _late_us(schedule: Schedule, now: int) -> int:
    if schedule.next_at <= now + LATE_US:
        return now - schedule.next_at
    spec = schedule.spec
    try:
        return schedule.next_at - next_tick_after(spec.expression, spec.zone, now + LATE_US)
    except Invalid:
        return 0  # its zone is not known here


def open_groups(store: Store) -> OpenGroups:
    found = list(islice(all_groups(store, open_only=True), GROUPS_COUNTED))
    return OpenGroups(len(found), sum(view.sealed_at is None for view in found))
