"""Rates at which jobs enter queues and end in them, from the differences between readings. Pure.

A store counts the jobs it holds, and retention and purges remove ended ones: without a correction, a queue from which
as many are removed as succeed would look idle. How many were removed between two readings follows from numbers that
only rise: jobs ever enqueued, claims ever made. They are attributed to the queues that hold fewer ended jobs than
before; the rest to all queues, in proportion to the succeeded jobs they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from leasemill.kernel.commands import Totals
from leasemill.kernel.model import ENDED_STATES, SECOND, JobState

WINDOW_US: Final = 10 * SECOND
"""The window over which a rate is averaged: long enough to be read, short enough to follow."""


class Flow(Struct, frozen=True):
    """Jobs that came in and jobs that ended: counts of one step, or numbers per second."""

    entered: float
    ended: float


class Step(Struct, frozen=True):
    """The changes between two readings."""

    at: int
    lasted_us: int
    whole: Flow
    queues: dict[str, Flow]


class Counted(Struct, frozen=True):
    """The counts that a step is computed from. `at`: the store's time."""

    at: int
    totals: Totals
    queues: Mapping[str, Mapping[JobState, int]]


class Rates:
    """Rates over the latest steps; None before there are two readings."""

    def __init__(self) -> None:
        self._latest: Counted | None = None
        self._steps: tuple[Step, ...] = ()  # replaced as a whole: another thread may be reading it

    def add(self, now: Counted) -> None:
        before = self._latest
        if before is not None and now.at <= before.at:
            return
        self._latest = now
        if before is None:
            return
        recent = [one for one in self._steps if one.at > now.at - WINDOW_US]
        self._steps = (*recent, step(before, now))

    def whole(self) -> Flow | None:
        return _per_second([(one.lasted_us, one.whole) for one in self._steps])

    def queue(self, name: str) -> Flow | None:
        nothing = Flow(0, 0)
        return _per_second([(one.lasted_us, one.queues.get(name, nothing)) for one in self._steps])


def _per_second(flows: list[tuple[int, Flow]]) -> Flow | None:
    if not flows:
        return None
    seconds = sum(lasted_us for lasted_us, _ in flows) / SECOND
    return Flow(sum(one.entered for _, one in flows) / seconds, sum(one.ended for _, one in flows) / seconds)


def step(before: Counted, now: Counted) -> Step:
    removed = _removed(before.totals, now.totals)
    changes = {name: _change(before.queues.get(name, {}), counts) for name, counts in now.queues.items()}
    held = {
        name: counts[JobState.SUCCEEDED] + before.queues.get(name, counts)[JobState.SUCCEEDED]
        for name, counts in now.queues.items()
    }
    shares = _shares(removed, {name: ended for name, (_, ended) in changes.items()}, held)
    return Step(
        now.at,
        now.at - before.at,
        _flow(_change(before.totals.counts, now.totals.counts), removed),
        {name: _flow(change, shares[name]) for name, change in changes.items()},
    )


def _removed(before: Totals, now: Totals) -> int:
    """Return how many jobs were removed. PostgreSQL has sequence numbers without a job, so claims bound the number: a
    job that has ended was claimed and is not held any more, except for cancelled ones."""
    held, ended = _change(before.counts, now.counts)
    missing = now.seq - before.seq - held
    cancelled = now.counts[JobState.CANCELLED] - before.counts[JobState.CANCELLED]
    leased = now.counts[JobState.LEASED] - before.counts[JobState.LEASED]
    runs_over = now.fence - before.fence - leased
    return max(0, min(missing, runs_over - (ended - cancelled) + max(0, -cancelled)))


def _change(before: Mapping[JobState, int], now: Mapping[JobState, int]) -> tuple[int, int]:
    """Return the change of the number of jobs, and of ended ones."""
    changes = {state: count - before.get(state, 0) for state, count in now.items()}
    return sum(changes.values()), sum(change for state, change in changes.items() if state in ENDED_STATES)


def _shares(removed: int, ended: Mapping[str, int], held: Mapping[str, int]) -> Mapping[str, float]:
    """Return the number of jobs removed from each queue. `held`: the succeeded ones it had."""
    lost = {name: max(0, -change) for name, change in ended.items()}
    rest = removed - sum(lost.values())
    if rest < 0:  # the others were redriven
        return {name: removed * count / sum(lost.values()) for name, count in lost.items()}
    weights = held if any(held.values()) else dict.fromkeys(held, 1)
    return {name: count + rest * weights[name] / sum(weights.values()) for name, count in lost.items()}


def _flow(change: tuple[int, int], removed: float) -> Flow:
    held, ended = change
    return Flow(max(0.0, held + removed), max(0.0, ended + removed))
