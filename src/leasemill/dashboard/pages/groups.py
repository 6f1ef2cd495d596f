"""Groups: how far they are, what is in the way of their success, and one of them with its members."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.errors import NotFound
from leasemill.kernel.commands import GroupView, JobFilter
from leasemill.kernel.model import Job, JobState
from leasemill.kernel.transitions.groups import end_id, then_id
from leasemill.store.base import Store

PAGE_SIZE: Final = 50
MEMBERS_SHOWN: Final = 20
NESTED_SHOWN: Final = 50
READ_FOR_S: Final = 0.1
UNSUCCEEDED: Final = frozenset(JobState) - {JobState.SUCCEEDED}
PARTS: Final = ("succeeded", "failed", "dead", "cancelled")
TONES: Final = {"open": "scheduled", "running": "leased", "succeeded": "succeeded", "ended": "failed"}


class Share(Struct, frozen=True):
    """A part of a group's bar, in percent of its width."""

    tone: str
    left: float
    width: float


class GroupOnPage(Struct, frozen=True):
    view: GroupView
    state: str
    shares: list[Share]

    @property
    def tone(self) -> str:
        return TONES[self.state]


def read(context: PageContext) -> Mapping[str, Any]:
    group_id = context.asked("id")
    if group_id is not None:
        return _one(context, group_id)
    is_open = context.asked("show") != "all"
    after = context.asked("after") or ""
    found = context.store.groups(open_only=is_open, limit=PAGE_SIZE + 1, after=after)
    return {
        "row": None,
        "rows": [row_of(view) for view in found[:PAGE_SIZE]],
        "is_open": is_open,
        "after": after,
        "next_after": found[PAGE_SIZE - 1].id if len(found) > PAGE_SIZE else None,
        "now": context.store.time(),
    }


def row_of(view: GroupView) -> GroupOnPage:
    return GroupOnPage(view, state_of(view), _shares(view))


def state_of(view: GroupView) -> str:
    """Return `open` until it is sealed, then `running`; in the end `succeeded` if all members have, else `ended`."""
    if view.sealed_at is None:
        return "open"
    if not view.is_over:
        return "running"
    return "succeeded" if view.succeeded == view.total else "ended"


def _shares(view: GroupView) -> list[Share]:
    shares, left = [], 0.0
    for part in PARTS:
        width = 100 * getattr(view, part) / max(1, view.total)
        if width:
            shares.append(Share(part, round(left, 3), round(width, 3)))
        left += width
    return shares


def _one(context: PageContext, group_id: str) -> Mapping[str, Any]:
    store = context.store
    view = store.group(group_id)
    if view is None:
        raise NotFound(f"there is no group {group_id!r}: it was never created, or retention has removed it")
    members, is_short = _members(store, group_id)
    callbacks = [("then", view.then, then_id(view.id)), ("on_end", view.on_end, end_id(view.id))]
    return {
        "title": group_id,
        "row": row_of(view),
        "members": members,
        "is_short": is_short,
        "callbacks": [
            (name, template, job_id, store.job(job_id)) for name, template, job_id in callbacks if template is not None
        ],
        "nested": [row_of(one) for one in store.groups(limit=NESTED_SHOWN, parent=group_id)],
        "now": store.time(),
    }


def _members(store: Store, group_id: str) -> tuple[list[Job], bool]:
    """Return the first members that have not succeeded, and whether the reading took too long and was cut off."""
    until = time.monotonic() + READ_FOR_S
    where = JobFilter(group=group_id, states=UNSUCCEEDED)
    found: list[Job] = []
    after: int | None = 0
    while after is not None and len(found) < MEMBERS_SHOWN:
        if time.monotonic() > until:
            return found, True
        page = store.jobs(where, limit=MEMBERS_SHOWN - len(found), after=after)
        found += page.jobs
        after = page.after
    return found, False


PAGE: Final = Page("groups", "/groups", "Groups", "groups.html", read, section="Control")
