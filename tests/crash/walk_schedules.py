"""The part of random walks that is about schedules: two of them, by a caller's clock that also jumps.

It is behind the store's, which decides: what the caller takes for due is due, and what it fires far too early is not.
"""

from __future__ import annotations

import random
from typing import Any

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Missed, Overlap, Schedule, ScheduleSpec
from leasemill.kernel.state import State

NAMES = ("tidy", "poll")
MINUTE = 60 * SECOND
START = 1_600_000_020 * SECOND
NOT_YET = 3_000_000_000 * SECOND
CALLS = (
    JobSpec("", "q", "k"),
    JobSpec("", "r", "l", b'{"a":1}', priority=3),
    JobSpec("", "q", "k", lane="a"),
    JobSpec("", "either", "k"),
)


class ScheduleWalk:
    """Draws commands about schedules of every minute."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._wall = START
        self._stale: list[c.TickFire] = []

    def next(self, state: State) -> c.Command[Any]:
        pick = self._random.choice
        self._wall += pick((0, SECOND, 61 * SECOND, 125 * SECOND, -90 * SECOND))
        name = pick(NAMES)
        schedule = state.schedules.get(name)
        if schedule is None or self._random.random() < 0.1:
            return self._set(name, schedule)
        way = self._random.choices(
            ("fire", "stale", "pause", "resume", "hand", "backfill", "remove", "read"), (50, 8, 5, 8, 5, 5, 3, 8)
        )[0]
        match way:
            case "fire":
                return self._fire(schedule)
            case "stale" if self._stale:
                return c.FireTicks([pick(self._stale)], self._wall)
            case "pause":
                return c.PauseSchedule(name, "ada", "because")
            case "resume":
                return self._resume(schedule)
            case "hand":
                return c.FireNow(name, self._wall, "ada", "because")
            case "backfill":
                first = schedule.next_at - pick((1, 3)) * MINUTE
                return c.Backfill(name, tuple(first + n * MINUTE for n in range(pick((1, 2, 4)))), "ada", "because")
            case "remove":
                return c.RemoveSchedule(name, "ada", "because")
            case _:
                return pick((c.ListSchedules(10), c.GetSchedule(name), c.DueSchedules(self._wall, 10), c.NextTick()))

    def _set(self, name: str, known: Schedule | None) -> c.Command[Any]:
        pick = self._random.choice
        spec = ScheduleSpec(
            name,
            pick(("* * * * *", "*/1 * * * *")),
            "UTC",
            pick(CALLS),
            pick(tuple(Overlap)),
            pick(tuple(Missed)),
            pick((0, 0, 10 * SECOND)),
            pick((0, 5 * MINUTE)),
        )
        if known is not None and self._random.random() < 0.3:
            spec = known.spec
        return c.SetSchedule(spec, self._wall // MINUTE * MINUTE + MINUTE, self._wall, "ada", "because")

    def _fire(self, schedule: Schedule) -> c.Command[Any]:
        """Mostly what is due; at times a tick that is not."""
        tick = schedule.next_at
        due = tuple(range(tick, max(self._wall, tick) + 1, MINUTE))
        if self._random.random() < 0.1:
            due = (*due, NOT_YET)
        most = self._random.choice((1, 3, 20))
        fire = c.TickFire(
            schedule.spec.name, schedule.revision, tick, due[-most:], due[-1] + MINUTE, max(0, len(due) - most)
        )
        self._stale = [*self._stale[-5:], fire]
        return c.FireTicks([fire] * self._random.choice((1, 1, 2)), self._wall)

    def _resume(self, schedule: Schedule) -> c.Command[Any]:
        tick = schedule.next_at
        due = tuple(range(tick, self._wall + 1, MINUTE))
        next_at = due[-1] + MINUTE if due else tick
        passed = max(0, len(due) - 20)
        return c.ResumeSchedule(schedule.spec.name, tick, due[-20:], next_at, "ada", "because", passed)
