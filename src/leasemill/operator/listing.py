"""Whole lists of a store, read page by page (O6), and the schedules and groups in them that may need an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from msgspec import Struct

from leasemill.api.cron import next_tick_after
from leasemill.api.schedule_commands import list_schedules
from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND, Job
from leasemill.kernel.read.filter import JobFilter
from leasemill.kernel.read.queues import QueueView
from leasemill.kernel.read.rules import GroupView, LimitView
from leasemill.kernel.schedule import Schedule
from leasemill.store.base import Store

PAGE: Final = 1_000

ViewT = TypeVar("ViewT")


def all_jobs(store: Store, where: JobFilter, *, after: int = 0, page_size: int = PAGE) -> Iterator[Job]:
    """The jobs that match, in the order of their sequence numbers; `after`: those with a higher one."""
    position: int | None = after
    while position is not None:
        page = store.jobs(where, limit=page_size, after=position)
        yield from page.jobs
        position = page.after


def all_queues(store: Store) -> Iterator[QueueView]:
    """Every queue, by name."""
    return _all(lambda after: store.queues(limit=PAGE, after=after), lambda view: view.name)


def find_queue(store: Store, name: str) -> QueueView | None:
    return next((view for view in all_queues(store) if view.name == name), None)


def all_groups(store: Store, *, open_only: bool = False) -> Iterator[GroupView]:
    """Every group, by id; `open_only`: those that have not ended."""
    return _all(lambda after: store.groups(open_only=open_only, limit=PAGE, after=after), lambda view: view.id)


def all_limits(store: Store) -> Iterator[LimitView]:
    """Every limit, by name."""
    return _all(lambda after: store.limits(limit=PAGE, after=after), lambda view: view.name)


def _all(read: Callable[[str], list[ViewT]], name_of: Callable[[ViewT], str]) -> Iterator[ViewT]:
    """Read up to an empty page: a short one may lack items that were removed while it was read."""
    after = ""
    while page := read(after):
        yield from page
        after = name_of(page[-1])


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
