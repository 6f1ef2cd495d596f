"""The five fields of a cron expression: what may be written in them, and which numbers that means."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leasemill.errors import Invalid

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
    """One field: its numbers, and the names they have. `shown`: the names, for people."""

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
