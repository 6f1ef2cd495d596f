"""What can be read of limits: their numbers, who holds their places, how many jobs wait, when a rate has room."""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

from msgspec import Struct

from leasemill.kernel.command import Command
from leasemill.kernel.gates import NamedLimit, Tally
from leasemill.kernel.model import QUEUE_LIMIT, LimitRecord, LimitTerms
from leasemill.kernel.state import LEASED, READY, State

__all__ = ["GetLimit", "LimitKeyView", "LimitView", "ListLimits"]

HOLDERS_SHOWN: Final = 10


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
    return [_view(state, state.limits[name], (), now) for name in names]


def get_limit(state: State, query: GetLimit, now: int) -> LimitView | None:
    limit = state.limits.get(query.name)
    if limit is None:
        return None
    if query.key is not None:
        keys = [query.key] if query.key in limit.tallies else []
    else:
        keys = nsmallest(query.limit, (key for key in limit.tallies if key is not None and key > query.after))
    return _view(state, limit, tuple(_key_view(state, limit.tallies[key], key, now) for key in keys), now)


def _view(state: State, limit: NamedLimit, keys: tuple[LimitKeyView, ...], now: int) -> LimitView:
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
