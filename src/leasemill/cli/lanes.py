"""`leasemill lanes`: which jobs wait behind which, and how to unblock a lane."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Any, assert_never

import click

from leasemill.cli.output import emit, emit_table, print_fields, print_json
from leasemill.cli.store_options import acting_on_store, limit_option, on_store
from leasemill.errors import NotFound, Refused
from leasemill.kernel.commands import Cancelled, JobFilter, LaneView
from leasemill.kernel.model import Job, JobState
from leasemill.operator.explain import what_it_does
from leasemill.operator.listing import PAGE, all_jobs, all_queues
from leasemill.operator.wording import instant
from leasemill.store.base import Store

RANGES_SHOWN = 10
WAITING_SHOWN = 20


class How(StrEnum):
    """What happens to the job that blocks a lane."""

    REDRIVE = "redrive"
    CANCEL = "cancel"
    PURGE = "purge"


DONE = {How.REDRIVE: "redriven", How.CANCEL: "cancelled", How.PURGE: "purged"}


@click.group()
def lanes() -> None:
    """List and show lanes, and unblock them."""


@lanes.command("list")
@click.option("--queue", help="Lanes of this queue. Default: all queues.")
@click.option("--blocked", is_flag=True, help="Only lanes that are blocked until an operator acts.")
@limit_option()
@on_store
def list_lanes(store: Store, queue: str | None, blocked: bool, limit: int, as_json: bool) -> None:
    """List lanes that have work. For each: its head, what the head does, and how many jobs wait behind it."""
    now = store.time()
    views = list(islice(_views(store, queue, blocked), limit + 1))
    found = views[:limit]
    emit_table(
        as_json,
        map(_document, found),
        ("queue", "lane", "waiting", "head", "status"),
        ((view.queue, view.lane, f"{view.waiting:,}", _id(view.head), _which(view.head, now)) for view in found),
        "there are more: use --limit or --queue" if len(views) > limit else "",
    )


@lanes.command()
@click.argument("queue")
@click.argument("lane")
@on_store
def show(store: Store, queue: str, lane: str, as_json: bool) -> None:
    """Show a lane. Prints its head, the jobs that wait behind it, and which offsets have ended."""
    view = _found(store, queue, lane)
    waiting = list(islice(_waiting(store, view), WAITING_SHOWN))
    if as_json:
        print_json(_document(view) | {"next": [job.spec.id for job in waiting]})
        return
    lines = [
        ("lane", f"{lane} (queue {queue})"),
        ("state", "BLOCKED until an operator acts" if view.is_blocked else "moving"),
        ("head", f"{_id(view.head)}, which {_which(view.head, store.time())}" if view.head else "-"),
        ("waiting", f"{view.waiting:,}"),
    ]
    for name, ranges in (("finished", view.finished), ("failed", view.failed)):
        if ranges:
            lines.append((name, _ranges(ranges)))
    lines += [("", job.spec.id) for job in waiting]
    if view.waiting > len(waiting):
        lines.append(("", f"… and {view.waiting - len(waiting):,} more"))
    print_fields(lines)


@lanes.command()
@click.argument("queue")
@click.argument("lane")
@click.option(
    "--how",
    required=True,
    type=click.Choice([how.value for how in How]),
    help="Redrive, cancel or purge the head.",
)
@acting_on_store
def unblock(store: Store, queue: str, lane: str, how: str, reason: str, by: str, as_json: bool) -> None:
    """Unblock a lane whose head has failed. Redrive, cancel or purge that job."""
    view = _found(store, queue, lane)
    if not view.is_blocked or view.head is None:
        does = "" if view.head is None else f": its head {view.head.spec.id!r} {what_it_does(view.head, store.time())}"
        raise Refused(f"lane {lane!r} of queue {queue!r} is not blocked{does}")
    head = view.head.spec.id
    if not _act(store, How(how), head, by, reason):
        raise Refused(f"job {head!r} has just changed: run `leasemill lanes show` and try again")
    after = store.lane(queue, lane)
    behind = None if after is None or after.head is None else after.head.spec.id
    emit(
        as_json,
        {"queue": queue, "lane": lane, "job_id": head, "how": how, "head": behind},
        f"{head}: {DONE[How(how)]}; {'the lane is empty' if behind is None else f'the head is {behind}'}",
    )


def _act(store: Store, how: How, job_id: str, by: str, reason: str) -> bool:
    """Act on the job, and return whether that changed anything."""
    this = JobFilter(job_ids=(job_id,))
    match how:
        case How.REDRIVE:
            return bool(store.redrive(this, by=by, reason=reason).job_ids)
        case How.CANCEL:
            (outcome,) = store.cancel([job_id], by=by, reason=reason)
            return isinstance(outcome, Cancelled) and not outcome.is_repeat
        case How.PURGE:
            return bool(store.purge(this, by=by, reason=reason).job_ids)
        case _:
            assert_never(how)


def _found(store: Store, queue: str, lane: str) -> LaneView:
    view = store.lane(queue, lane)
    if view is None:
        raise NotFound(f"lane {lane!r} of queue {queue!r} has no work, or does not exist")
    return view


def _views(store: Store, queue: str | None, blocked: bool) -> Iterator[LaneView]:
    for name in [view.name for view in all_queues(store)] if queue is None else [queue]:
        after: int | None = 0
        while after is not None:
            page = store.lanes(name, blocked_only=blocked, limit=PAGE, after=after)
            yield from page.lanes
            after = page.after


def _waiting(store: Store, view: LaneView) -> Iterator[Job]:
    """Return the jobs behind the head, in order. They were enqueued after it, so the list starts there."""
    where = JobFilter(queue=view.queue, lane=view.lane, states=frozenset({JobState.READY}))
    return all_jobs(store, where, after=0 if view.head is None else view.head.seq, page_size=WAITING_SHOWN)


def _document(view: LaneView) -> dict[str, Any]:
    head = view.head
    return {
        "queue": view.queue,
        "lane": view.lane,
        "is_blocked": view.is_blocked,
        "waiting": view.waiting,
        "head": None if head is None else head.spec.id,
        "head_state": None if head is None else head.state,
        "head_updated_at": None if head is None else instant(head.updated_at),
        "finished": view.finished,
        "failed": view.failed,
    }


def _id(job: Job | None) -> str:
    return "-" if job is None else job.spec.id


def _which(job: Job | None, now: int) -> str:
    return "-" if job is None else what_it_does(job, now)


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges[-RANGES_SHOWN:])
    return shown if len(ranges) <= RANGES_SHOWN else f"… {shown} ({len(ranges)} ranges)"
