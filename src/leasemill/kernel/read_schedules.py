"""What can be read of schedules. Every answer is bounded, and is a copy."""

from __future__ import annotations

from heapq import nsmallest

from msgspec.structs import replace

from leasemill.kernel.command import Command
from leasemill.kernel.schedule import Schedule
from leasemill.kernel.state import State

__all__ = ["DueSchedules", "GetSchedule", "ListSchedules", "NextTick"]


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
