"""Cron expressions in a time zone, and intervals: they tell when a schedule is due. Pure but for the zone database.

P7, as Debian's cron has it. An expression with a fixed minute and hour follows the wall clock: a local time that
does not exist is the first instant after the gap, one that occurs twice is the first of the two. With `*` at the
beginning of its minute or hour it follows elapsed time, so that an hour that occurs twice counts twice. If day of month
and day of week are both restricted, either is enough. Intervals are aligned to the epoch: a restart moves nothing.
"""

from __future__ import annotations

import calendar
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND

ITEM: Final = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,4}))?", re.ASCII)
FEBRUARY: Final = 2
MONTHS: Final = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a cron expression: its numbers, and the names they have. `shown`: the names, for people."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    shown: str = ""

    def parse(self, text: str, expression: str) -> frozenset[int]:
        found: set[int] = set()
        for item in text.split(","):
            numbers = self._numbers(item)
            if not numbers:
                names = f" or {self.shown}" if self.shown else ""
                raise Invalid(
                    f"{item!r} is not a valid {self.name} in {expression!r}: use {self.low} to {self.high}{names}, "
                    "*, ranges (1-5), lists (1,3) and steps (*/15)"
                )
            found.update(numbers)
        return frozenset(found)

    def _numbers(self, item: str) -> range:
        """Empty: it is not an item."""
        match = ITEM.fullmatch(item)
        if match is None:
            return range(0)
        first, last, step_text = match.groups()
        step = int(step_text or 1)
        low: int | None
        high: int | None
        if first == "*":
            low, high = self.low, self.high
        else:
            low = self._number(first)
            high = low if step_text is None else self.high
        if last is not None:
            high = self.high if last == WEEKDAYS[0] else self._number(last)  # a week ends on Sunday
        if low is None or high is None or step == 0 or (first == "*" and last is not None):
            return range(0)
        return range(low, high + 1, step)

    def _number(self, text: str) -> int | None:
        if text in self.names:
            return self.names.index(text)
        if not text.isdigit() or not self.low <= int(text) <= self.high:
            return None
        return int(text)


FIELDS: Final = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field("month", 1, 12, MONTHS, "jan to dec"),
    Field("day of week", 0, 7, WEEKDAYS, "sun to sat"),
)


def is_wildcard(text: str) -> bool:
    return text.startswith("*")


def longest_month(months: Iterable[int]) -> int:
    return max(29 if month == FEBRUARY else calendar.monthrange(2001, month)[1] for month in months)


DAY: Final = timedelta(days=1)
QUARTER: Final = DAY / 4
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DAY: Final = date(9990, 12, 31)
LONGEST_INTERVAL: Final = timedelta(days=3_660)
SUNDAY: Final = 7
EVERY: Final = re.compile(r"@every\s+(\d{1,9})\s*(s|m|h|d)", re.ASCII | re.IGNORECASE)
UNITS: Final = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": DAY}
COUNTED: Final = 100_000
"""Ticks that are counted one by one. A clock that was decades behind is not worth more."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A fixed period, counted from the epoch."""

    period: timedelta

    @property
    def expression(self) -> str:
        return f"@every {self.period // timedelta(seconds=1)}s"

    def after(self, instant: datetime, _zone: tzinfo) -> Iterator[datetime]:
        tick = EPOCH + (instant - EPOCH) // self.period * self.period
        while True:
            tick += self.period
            yield tick


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression; `parse` makes it."""

    expression: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    has_either_day: bool
    follows_elapsed_time: bool

    def after(self, instant: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The ticks after an instant, in UTC, in order, without end."""
        ticks = self._by_elapsed_time if self.follows_elapsed_time else self._by_the_wall
        return ticks(instant.astimezone(UTC), zone)

    def _by_the_wall(self, instant: datetime, zone: tzinfo) -> Iterator[datetime]:
        last = instant
        for day in self._days(instant.astimezone(zone).date() - DAY, LAST_DAY):
            for local in self._times(day):
                tick = existing(local, zone)
                if tick > last:  # two local times in one gap are one tick
                    yield tick
                    last = tick

    def _by_elapsed_time(self, instant: datetime, zone: tzinfo) -> Iterator[datetime]:
        begin = instant.replace(second=0, microsecond=0) + timedelta(minutes=1)
        while begin.date() < LAST_DAY:
            end, offset = constant_offset(begin, zone)
            first, last = ((at + offset).replace(tzinfo=None) for at in (begin, end))
            for day in self._days(first.date(), last.date()):
                for local in self._times(day):
                    if first <= local < last:
                        yield local.replace(tzinfo=UTC) - offset
            begin = end

    def _times(self, day: date) -> Iterator[datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                yield datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001  (local time, made an instant by the caller)

    def _days(self, first: date, last: date) -> Iterator[date]:
        day = first
        while day <= last:
            if day.month not in self.months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
                continue
            if self._is_due_on(day):
                yield day
            day += DAY

    def _is_due_on(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % SUNDAY in self.weekdays
        return of_month or of_week if self.has_either_day else of_month and of_week


def parse(schedule: str | timedelta) -> Cron | Interval:
    """Five fields (minute, hour, day of month, month, day of week), a macro such as @daily, `@every 90s`, or a time."""
    if isinstance(schedule, timedelta):
        return _interval(schedule)
    if not isinstance(schedule, str):
        raise Invalid(f"{schedule!r} is not a schedule: write a cron expression, such as '0 3 * * *', or a timedelta")
    if (every := EVERY.fullmatch(schedule.strip())) is not None:
        return _interval(int(every[1]) * UNITS[every[2].lower()])
    return _cron(schedule)


def _interval(period: timedelta) -> Interval:
    if not timedelta(seconds=1) <= period <= LONGEST_INTERVAL or period % timedelta(seconds=1):
        raise Invalid(f"an interval of {period.total_seconds():g} s is not possible: use whole seconds, at least 1")
    return Interval(period)


@lru_cache(maxsize=10_000)
def _cron(expression: str) -> Cron:
    text = " ".join(expression.lower().split())
    parts = MACROS.get(text, text).split()
    if len(parts) != len(FIELDS):
        raise Invalid(
            f"{expression!r} is not a cron expression: write five fields (minute, hour, day of month, month, day of "
            f"week), such as '30 3 * * mon-fri', '@every 90s', or one of {', '.join(sorted(MACROS))}"
        )
    minutes, hours, days, months, weekdays = (
        field.parse(part, expression) for field, part in zip(FIELDS, parts, strict=True)
    )
    has_either_day = not is_wildcard(parts[2]) and not is_wildcard(parts[4])
    if not has_either_day and min(days) > longest_month(months):
        raise Invalid(f"{expression!r} is never due: no month that it names has such a day")
    return Cron(
        text,
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % SUNDAY for day in weekdays),
        has_either_day,
        is_wildcard(parts[0]) or is_wildcard(parts[1]),
    )


# Zones -----------------------------------------------------------------------------------------------------------


def parse_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise Invalid(
            f"{name!r} is not a known time zone: use an IANA name such as 'Europe/Berlin'. If it is one, this system "
            "has no zone database: install the package tzdata"
        ) from None


def existing(local: datetime, zone: tzinfo) -> datetime:
    """A local time as an instant: the first of two, or the first after the gap it falls into."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    second = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first_change(min(first, second), max(first, second), zone)


def constant_offset(begin: datetime, zone: tzinfo) -> tuple[datetime, timedelta]:
    """Return the time until which the offset of `begin` holds, two days at most, and the offset."""
    offset = begin.astimezone(zone).utcoffset() or timedelta()
    at = begin
    for _ in range(8):
        at += QUARTER
        if at.astimezone(zone).utcoffset() != offset:
            return _first_change(at - QUARTER, at, zone), offset
    return at, offset


def _first_change(begin: datetime, end: datetime, zone: tzinfo) -> datetime:
    """The first instant between these two, by the second, that has not the offset of `begin`."""
    offset = begin.astimezone(zone).utcoffset()
    low, high = 0, int((end - begin).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (begin + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return begin + timedelta(seconds=high)


# Ticks -----------------------------------------------------------------------------------------------------------


def next_ticks(schedule: str | timedelta, *, after: datetime, tz: str = "UTC", count: int = 1) -> list[datetime]:
    """The next ticks of a cron expression or an interval after an instant, in the schedule's time zone."""
    if after.tzinfo is None:
        raise Invalid(f"after is {after!r}, which has no time zone: use datetime.now(UTC), or give it one")
    zone = parse_zone(tz)
    return [tick.astimezone(zone) for tick in islice(parse(schedule).after(after, zone), count)]


def ticks_after(expression: str, zone: str, after: int) -> Iterator[int]:
    """Yield the ticks after a time, in microseconds since the epoch."""
    return (micros(tick) for tick in parse(expression).after(instant_of(after), parse_zone(zone)))


def next_tick_after(expression: str, zone: str, after: int) -> int:
    found = next(ticks_after(expression, zone, after), None)
    if found is None:
        raise Invalid(f"{expression!r} has no tick after {instant_of(after).isoformat()}")
    return found


class Due(NamedTuple):
    """The latest ticks that are due, how many are due before those, and the next one."""

    ticks: tuple[int, ...]
    passed: int
    next_at: int


def due_ticks(expression: str, zone: str, tick_at: int, now: int, keep: int) -> Due:
    """Return the ticks that are due from this tick on, which is one of them. Beyond 100,000 ticks only the latest are
    looked at."""
    latest: deque[int] = deque([tick_at], keep)
    count = 1
    for tick in ticks_after(expression, zone, tick_at):
        if tick > now:
            return Due(tuple(latest), count - len(latest), tick)
        if count >= COUNTED:
            break
        latest.append(tick)
        count += 1
    else:
        raise Invalid(f"{expression!r} has no tick after {instant_of(tick_at).isoformat()}")
    window = 3_600 * SECOND
    while not (last := _ticks_between(expression, zone, max(tick_at, now - window), now, keep)).ticks:
        window *= 4
    return Due(last.ticks, max(1, count + last.passed), last.next_at)


def _ticks_between(expression: str, zone: str, after: int, until: int, keep: int) -> Due:
    latest: deque[int] = deque(maxlen=keep)
    for count, tick in enumerate(ticks_after(expression, zone, after)):
        if tick > until:
            return Due(tuple(latest), count - len(latest), tick)
        latest.append(tick)
    raise Invalid(f"{expression!r} has no tick after {instant_of(after).isoformat()}")


def instant_of(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)
