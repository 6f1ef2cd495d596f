"""Whole lists of a store, read page by page: each reading is bounded (O6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from leasemill.kernel.model import Job
from leasemill.kernel.read.filter import JobFilter
from leasemill.kernel.read.queues import QueueView
from leasemill.kernel.read.rules import GroupView, LimitView
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
    """Up to an empty page: one that is short may lack what was forgotten while it was read."""
    after = ""
    while page := read(after):
        yield from page
        after = name_of(page[-1])
