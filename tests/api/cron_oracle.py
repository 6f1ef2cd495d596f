"""Two other opinions on when a cron expression is due, and expressions to ask them about.

`debian` writes Debian's rule out, minute by minute: slow, and short enough to be read. `Years` is the same rule for
many expressions over whole years: every minute of the zone is looked at once. `cronsim` is a library. Where it
disagrees, Debian's rule decides: it takes `5-5/2` for `5/2`, misses ticks around shifts that are not whole hours or
does not come back (`* 23,3-6 14 * 0-3` in Pacific/Chatham), and has ticks of its own where a midnight does not exist.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from itertools import compress, takewhile
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

from leasemill.api.cron import FIELDS, is_wildcard, parse

MINUTE = timedelta(minutes=1)
ZERO = timedelta(0)
ZONES = (
    *("Europe/Berlin", "America/New_York", "Africa/Cairo", "Asia/Beirut", "America/Sao_Paulo", "Asia/Tehran"),
    *("America/Havana", "Asia/Gaza", "Europe/Dublin", "Africa/Casablanca", "Asia/Kolkata", "America/St_Johns"),
    *("America/Santiago", "Asia/Amman", "America/Asuncion", "UTC", "Pacific/Apia", "Pacific/Chatham"),
    *("Australia/Lord_Howe", "Antarctica/Troll"),
)
NOT_ASKED = frozenset({"Pacific/Chatham", "Australia/Lord_Howe"})
"""Zones in which the library goes round for ever, or misses ticks."""


def shifts(zone: ZoneInfo, first_year: int, years: int) -> Iterator[datetime]:
    """The days on which the offset changes."""
    day = datetime(first_year, 1, 1, tzinfo=UTC)
    while day.year < first_year + years:
        following = day + timedelta(days=1)
        if day.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            yield day
        day = following


def debian(expression: str, zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    """Wildcard jobs run when the clock on the wall shows their time. Fixed ones too, but the first time only, and those
    whose time was left out run right after the gap."""
    parts = expression.split()
    fields = [field.parse(part, expression) for field, part in zip(FIELDS, parts, strict=True)]
    is_elapsed = is_wildcard(parts[0]) or is_wildcard(parts[1])
    has_either_day = not is_wildcard(parts[2]) and not is_wildcard(parts[4])

    def matches(local: datetime) -> bool:
        minutes, hours, days, months, weekdays = fields
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        of_month = local.day in days
        of_week = bool({local.isoweekday() % 7, local.isoweekday()} & weekdays)
        return of_month or of_week if has_either_day else of_month and of_week

    found: list[datetime] = []
    at = after.astimezone(UTC).replace(second=0, microsecond=0) - timedelta(days=2)
    wall = at.astimezone(zone).replace(tzinfo=None)
    latest = wall
    """The latest local time that was shown: a fixed time up to it has run."""
    while at < until:
        at += MINUTE
        wall, before = at.astimezone(zone).replace(tzinfo=None), wall
        if is_elapsed:
            is_due = matches(wall)
        else:
            left_out = (wall - before) // MINUTE
            is_due = any(matches(wall - n * MINUTE) for n in range(max(1, left_out)) if wall - n * MINUTE > latest)
            latest = max(latest, wall)
        if is_due and after < at <= until:
            found.append(at)
    return found


class Stretch(NamedTuple):
    """Minutes in a row in which the clock on the wall goes on by a minute each."""

    begin: int
    """Minutes since the first one that was looked at."""
    minutes: int
    wall: int
    """What the clock shows at first, in minutes since the first day of the walls."""


class Years:
    """Every minute of a zone's years, after `after` and up to `until`."""

    def __init__(self, zone: ZoneInfo, after: datetime, until: datetime) -> None:
        first = after - timedelta(days=2)
        self._first_day = first.date() - timedelta(days=2)
        self._days = (until - first).days + 5
        self._asked = slice((after - first) // MINUTE + 1, (until - first) // MINUTE + 1)
        self._instants = [first + n * MINUTE for n in range(self._asked.stop)]
        self._stretches = list(self._find_stretches(zone))

    def _find_stretches(self, zone: ZoneInfo) -> Iterator[Stretch]:
        midnight = datetime.combine(self._first_day, datetime.min.time(), UTC)
        offset, begin = self._instants[0].astimezone(zone).utcoffset(), 0
        for place, instant in enumerate(self._instants):
            found = instant.astimezone(zone).utcoffset()
            if found != offset:
                yield Stretch(begin, place - begin, (self._instants[begin] + (offset or ZERO) - midnight) // MINUTE)
                offset, begin = found, place
        wall = (self._instants[begin] + (offset or ZERO) - midnight) // MINUTE
        yield Stretch(begin, len(self._instants) - begin, wall)

    def debian(self, expression: str) -> list[datetime]:
        parts = expression.split()
        walls = self._matching_walls(expression)
        due = bytearray(len(self._instants))
        latest = self._stretches[0].wall
        for begin, count, wall in self._stretches:
            if is_wildcard(parts[0]) or is_wildcard(parts[1]):
                due[begin : begin + count] = walls[wall : wall + count]
                continue
            shown_before = max(0, latest + 1 - wall)
            """Minutes at the beginning of the stretch that the clock had shown before it was set back."""
            if shown_before < count:
                due[begin + shown_before : begin + count] = walls[wall + shown_before : wall + count]
            due[begin] |= any(walls[latest + 1 : wall])  # what was left out
            latest = max(latest, wall + count - 1)
        return list(compress(self._instants[self._asked], due[self._asked]))

    def _matching_walls(self, expression: str) -> bytes:
        """For every minute that a clock on the wall could show, 1 or 0."""
        parts = expression.split()
        fields = [field.parse(part, expression) for field, part in zip(FIELDS, parts, strict=True)]
        minutes, hours, days, months, weekdays = fields
        has_either_day = not is_wildcard(parts[2]) and not is_wildcard(parts[4])
        due = bytes(hour in hours and minute in minutes for hour in range(24) for minute in range(60))
        never = bytes(24 * 60)

        def on(day: date) -> bytes:
            of_month, of_week = day.day in days, bool({day.isoweekday() % 7, day.isoweekday()} & weekdays)
            is_due = of_month or of_week if has_either_day else of_month and of_week
            return due if is_due and day.month in months else never

        return b"".join(on(self._first_day + timedelta(days=n)) for n in range(self._days))


def cronsim(expression: str, zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    simulated = import_module("cronsim").CronSim(expression, after.astimezone(zone))
    instants = (cast(datetime, one).astimezone(UTC) for one in cast(Iterator[Any], simulated))
    return list(takewhile(lambda at: at <= until, instants))


def ours(expression: str, zone: ZoneInfo, after: datetime, until: datetime) -> list[datetime]:
    return list(takewhile(lambda at: at <= until, parse(expression).after(after, zone)))


def expressions(seed: int) -> Iterator[str]:
    """Without end; some are never due, and refused."""
    draw = random.Random(seed)

    def item(low: int, high: int) -> str:
        first, kind = draw.randint(low, high), draw.random()
        last = draw.randint(first, high)
        if kind < 0.5 or first == last:
            return str(first)
        return f"{first}-{last}" if kind < 0.8 else f"{first}-{last}/{draw.randint(1, 5)}"

    def field(low: int, high: int, wildcards: float) -> str:
        if draw.random() < wildcards:
            return draw.choice(["*", f"*/{draw.randint(1, max(2, (high - low) // 2))}"])
        return ",".join(item(low, high) for _ in range(draw.choice([1, 1, 1, 2, 3])))

    while True:
        yield " ".join([field(0, 59, 0.4), field(0, 23, 0.4), field(1, 31, 0.6), field(1, 12, 0.7), field(0, 6, 0.6)])
