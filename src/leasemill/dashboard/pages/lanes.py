"""Lanes: which are blocked and by what, which are longest, and one of them with what waits in it.

Lanes are read queue by queue up to a bound: blocked ones first, which are few, then others in the order of their heads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.errors import NotFound
from leasemill.kernel.commands import JobFilter, LaneView
from leasemill.kernel.model import Job, JobState
from leasemill.kernel.read.filter import last_error
from leasemill.store.base import Store

STEP: Final = 200
MOST: Final = 1_000
READ_FOR_S: Final = 0.2
SHOWN: Final = 100
WAITING_SHOWN: Final = 20
RANGES_SHOWN: Final = 10


class LanesFound(Struct, frozen=True):
    """The lanes that were found. `is_all`: no other lane has work."""

    lanes: list[LaneView]
    is_all: bool


def read(context: PageContext) -> Mapping[str, Any]:
    queue, lane = context.asked("queue"), context.asked("lane")
    if queue is not None and lane is not None:
        return _one(context, queue, lane)
    names = [queue] if queue is not None else _queues(context)
    found = context.once(("lanes", queue), lambda: find_lanes(context.store, names))
    blocked = [view for view in found.lanes if view.is_blocked]
    only = "blocked" if context.asked("only") == "blocked" else None
    rows = blocked if only else found.lanes
    return {
        "view": None,
        "lanes": [(view, status_of(view.head, context.store.time())) for view in rows[:SHOWN]],
        "count": len(rows),
        "shown": SHOWN,
        "found": found,
        "blocked": len(blocked),
        "held_up": sum(view.waiting for view in blocked),
        "longest": max((view.waiting for view in found.lanes), default=0),
        "only": only,
        "queue": queue,
        "now": context.store.time(),
    }


def _queues(context: PageContext) -> list[str]:
    """Return the queues with jobs that may be in lanes, the fullest first."""
    queues = () if context.sample is None else context.sample.queues
    with_work = [one for one in queues if any(one.counts[state] for state in JobState if state != JobState.SUCCEEDED)]
    return [one.name for one in sorted(with_work, key=lambda one: -one.counts[JobState.READY])]


def find_lanes(store: Store, queues: Sequence[str], for_s: float = READ_FOR_S) -> LanesFound:
    until = time.monotonic() + for_s
    lanes: dict[tuple[str, str], LaneView] = {}
    is_all = True
    for blocked_only in (True, False):
        for queue in queues:
            after: int | None = 0
            while after is not None:
                if len(lanes) >= MOST or time.monotonic() > until:
                    is_all = False
                    break
                page = store.lanes(queue, blocked_only=blocked_only, limit=STEP, after=after)
                lanes.update(((view.queue, view.lane), view) for view in page.lanes)
                after = page.after
    order = sorted(lanes.values(), key=lambda view: (not view.is_blocked, -view.waiting, view.queue, view.lane))
    return LanesFound(order, is_all)


def _one(context: PageContext, queue: str, lane: str) -> Mapping[str, Any]:
    view = context.store.lane(queue, lane)
    if view is None:
        raise NotFound(f"lane {lane!r} of queue {queue!r} has no work, or does not exist")
    now = context.store.time()
    return {
        "title": lane,
        "view": view,
        "does": status_of(view.head, now),
        "error": None if view.head is None else last_error(view.head),
        "waiting": _waiting(context.store, view),
        "finished": ranges(view.finished),
        "failed_offsets": ranges(view.failed),
        "now": now,
    }


def _waiting(store: Store, view: LaneView) -> tuple[Job, ...]:
    """Return the jobs behind the head, in order: they were enqueued after it."""
    where = JobFilter(queue=view.queue, lane=view.lane, states=frozenset({JobState.READY}))
    return store.jobs(where, limit=WAITING_SHOWN, after=0 if view.head is None else view.head.seq).jobs


class LaneStatus(Struct, frozen=True):
    """The state of a lane's head, in few words. `at`: since when, or until when."""

    words: str
    tone: str
    at: int | None = None
    worker: str | None = None


def status_of(head: Job | None, now: int) -> LaneStatus:
    if head is None:
        return LaneStatus("no head", "cancelled")
    last = head.executions[-1] if head.executions else None
    if head.state is JobState.LEASED and last is not None:
        return LaneStatus("running", "leased", last.leased_at, last.worker)
    if head.blocks_lane:
        how = "failed" if head.state is JobState.FAILED else "quarantined"
        return LaneStatus(how, "failed", head.updated_at)
    if head.available_at > now:
        return LaneStatus("retry" if last is not None else "not due", "scheduled", head.available_at)
    return LaneStatus("due", "ready", head.available_at)


def ranges(found: Iterable[tuple[int, int]]) -> str:
    """Write offsets as `0 to 7, 9`; only the latest ranges."""
    every = list(found)
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in every[-RANGES_SHOWN:])
    return shown if len(every) <= RANGES_SHOWN else f"… {shown} ({len(every)} ranges)"


PAGE: Final = Page("lanes", "/lanes", "Lanes", "lanes.html", read, section="Trouble")
