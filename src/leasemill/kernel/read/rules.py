"""Reading what relates jobs: groups, schedules, and limits with their numbers and holders."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from leasemill.kernel.command import Command
from leasemill.kernel.index.limit_index import NamedLimit, Tally
from leasemill.kernel.model import (
    QUEUE_LIMIT,
    ChainedJob,
    JobGroup,
    LimitRecord,
    LimitTerms,
)
from leasemill.kernel.schedule import Schedule
from leasemill.kernel.state import LEASED, READY, State

__all__ = [
    "DueSchedules",
    "GetGroup",
    "GetLimit",
    "GetSchedule",
    "GroupView",
    "LimitKeyView",
    "LimitView",
    "ListGroups",
    "ListLimits",
    "ListSchedules",
    "NextTick",
]

HOLDERS_SHOWN: Final = 10


# Groups ----------------------------------------------------------------------------------------------------------


class GroupView(Struct, frozen=True):
    """A group and its counts. `ended_at`: when all had ended for the first time; `is_over`: all have ended now."""

    id: str
    then: ChainedJob | None
    on_end: ChainedJob | None
    parent: str | None
    created_at: int
    sealed_at: int | None
    ended_at: int | None
    succeeded_at: int | None
    is_over: bool
    total: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    unfinished: int


class GetGroup(Command[GroupView | None], frozen=True):
    group_id: str


class ListGroups(Command[list[GroupView]], frozen=True):
    """Groups by id; `open_only`: those that are not over. `after`: the last id of the page before. `parent`: those that
    are in this group."""

    limit: int
    open_only: bool = False
    after: str = ""
    parent: str | None = None


def get_group(state: State, query: GetGroup, _now: int) -> GroupView | None:
    group = state.groups.get(query.group_id)
    return None if group is None else group_view(group)


def list_groups(state: State, query: ListGroups, _now: int) -> list[GroupView]:
    ids = (
        group.id
        for group in state.groups.values()
        if group.id > query.after and not (query.open_only and group.is_over) and query.parent in (None, group.parent)
    )
    return [group_view(state.groups[group_id]) for group_id in nsmallest(query.limit, ids)]


def group_view(group: JobGroup) -> GroupView:
    return GroupView(
        group.id,
        group.then,
        group.on_end,
        group.parent,
        group.created_at,
        group.sealed_at,
        group.ended_at,
        group.succeeded_at,
        group.is_over,
        group.total,
        group.succeeded,
        group.failed,
        group.dead,
        group.cancelled,
        group.unfinished,
    )


# Limits ----------------------------------------------------------------------------------------------------------


class LimitKeyView(Struct, frozen=True):
    """One key of a limit. `waiting`: the READY jobs under it, of lanes their heads alone, due or not. `holders`: the
    jobs that hold a place, the longest first, at most 10. `opens_at`: when its rate has room for a grant; None: now."""

    key: str
    held: int
    waiting: int
    holders: tuple[str, ...] = ()
    opens_at: int | None = None


class LimitView(Struct, frozen=True):
    """A limit over all its keys. `terms`: the numbers that hold, of each key; without any it is no limit. `holders` and
    `opens_at` are those of the jobs that name it without a key. A queue's own limit has no holders listed."""

    name: str
    terms: LimitTerms
    record: LimitRecord
    held: int
    waiting: int
    holders: tuple[str, ...] = ()
    opens_at: int | None = None
    keys: tuple[LimitKeyView, ...] = ()


class ListLimits(Command[list[LimitView]], frozen=True):
    """By name, without their keys."""

    limit: int
    after: str = ""


class GetLimit(Command[LimitView | None], frozen=True):
    """One limit with at most `limit` of the keys in use, by name and after `after`; or with the one key given."""

    name: str
    limit: int = 100
    after: str = ""
    key: str | None = None


def list_limits(state: State, query: ListLimits, now: int) -> list[LimitView]:
    names = nsmallest(query.limit, (name for name in state.limits if name > query.after))
    return [_limit_view(state, state.limits[name], (), now) for name in names]


def get_limit(state: State, query: GetLimit, now: int) -> LimitView | None:
    limit = state.limits.get(query.name)
    if limit is None:
        return None
    if query.key is not None:
        keys = [query.key] if query.key in limit.tallies else []
    else:
        keys = nsmallest(query.limit, (key for key in limit.tallies if key is not None and key > query.after))
    return _limit_view(state, limit, tuple(_key_view(state, limit.tallies[key], key, now) for key in keys), now)


def _limit_view(state: State, limit: NamedLimit, keys: tuple[LimitKeyView, ...], now: int) -> LimitView:
    own = limit.tallies.get(None)
    held, waiting = limit.held, limit.waiting
    if limit.name.startswith(QUEUE_LIMIT):
        queue = state.queues.get(limit.name.removeprefix(QUEUE_LIMIT))
        held, waiting = (0, 0) if queue is None else (queue.counts[LEASED], queue.counts[READY])
    return LimitView(
        limit.name,
        limit.terms,
        limit.record or LimitRecord(limit.name),
        held,
        waiting,
        () if own is None else _holders(state, own),
        None if own is None else _opens_at(own, now),
        keys,
    )


def _key_view(state: State, tally: Tally, key: str, now: int) -> LimitKeyView:
    return LimitKeyView(key, len(tally.holders), tally.waiting, _holders(state, tally), _opens_at(tally, now))


def _holders(state: State, tally: Tally) -> tuple[str, ...]:
    return tuple(nsmallest(HOLDERS_SHOWN, tally.holders, key=lambda job_id: state.jobs[job_id].executions[-1].fence))


def _opens_at(tally: Tally, now: int) -> int | None:
    opens_at = tally.opens_at()
    return opens_at if opens_at > now else None


# Schedules -------------------------------------------------------------------------------------------------------


class GetSchedule(Command[Schedule | None], frozen=True):
    name: str


class ListSchedules(Command[list[Schedule]], frozen=True):
    """By name; `after`: the last name of the page before."""

    limit: int
    after: str = ""


class DueSchedules(Command[list[Schedule]], frozen=True):
    """Those with a tick at or before `wall`, the longest due first; none that is paused."""

    wall: int
    limit: int


class NextTick(Command[int | None], frozen=True):
    """P9: the earliest next tick of the schedules that are not paused."""


def get_schedule(state: State, query: GetSchedule, _now: int) -> Schedule | None:
    schedule = state.schedules.get(query.name)
    return None if schedule is None else replace(schedule)


def list_schedules(state: State, query: ListSchedules, _now: int) -> list[Schedule]:
    names = nsmallest(query.limit, (name for name in state.schedules if name > query.after))
    return [replace(state.schedules[name]) for name in names]


def due_schedules(state: State, query: DueSchedules, _now: int) -> list[Schedule]:
    due = (one for one in state.schedules.values() if one.pause is None and one.next_at <= query.wall)
    return [replace(one) for one in nsmallest(query.limit, due, key=lambda one: (one.next_at, one.spec.name))]


def next_tick(state: State, _query: NextTick, _now: int) -> int | None:
    return min((one.next_at for one in state.schedules.values() if one.pause is None), default=None)
