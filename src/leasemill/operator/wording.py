"""Values as people read and write them: plurals, lists, instants, durations, limits and rates. Pure.

In a rate that an operator writes only ASCII digits are numbers, and neither a count nor a period may be zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from leasemill.api.cron import parse_zone
from leasemill.errors import Invalid
from leasemill.kernel.model import NEVER, SECOND, LimitTerms


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message about an unknown name; empty if no known name is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def without_room(needed_bytes: int) -> str:
    """Return what a full disk under a folder means."""
    return (
        f"new jobs are refused, running jobs can finish; free {-(-needed_bytes // 1_000_000):,} MB or more, or purge "
        "finished jobs and run `leasemill wal snapshot`"
    )


# Instants and durations -----------------------------------------------------------------------------------------

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S


def instant(us: int | None) -> str:
    if us is None:
        return "-"
    if us == NEVER:
        return "never"
    return datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def local_instant(at: datetime, zone: str) -> str:
    """Return an instant in a time zone, with its offset; in UTC if this machine does not know the zone."""
    try:
        local = at.astimezone(parse_zone(zone))
    except Invalid:
        local = at.astimezone(UTC)
    return f"{local:%Y-%m-%d %H:%M:%S %z}"


def span(us: int | None) -> str:
    """A duration in the unit that fits it."""
    if us is None:
        return "-"
    if us >= NEVER:
        return "never"
    seconds = us / SECOND
    if seconds < 1:
        return f"{us / 1000:.1f} ms"
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.1f} min"
    if seconds < DAY_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / DAY_S:.1f} d"


# Limits ---------------------------------------------------------------------------------------------------------

UNITS = {SECOND: "s", 60 * SECOND: "min", 3_600 * SECOND: "h", 86_400 * SECOND: "d"}


def numbers(terms: LimitTerms) -> str:
    """`10 places, 100/min, burst 10`."""
    parts = [] if terms.places is None else [counted(terms.places, "place")]
    rate = rate_of(terms)
    return ", ".join([*parts, *([rate] if rate else [])]) or "not limited"


def rate_of(terms: LimitTerms) -> str:
    if terms.rate is None or terms.per_us is None:
        return ""
    unit = UNITS.get(terms.per_us)
    rate = f"{terms.rate:,}/{unit}" if unit else f"{terms.rate:,} in {span(terms.per_us)}"
    return rate if (terms.burst or 1) == 1 else f"{rate}, burst {terms.burst:,}"


# Rates that an operator writes ----------------------------------------------------------------------------------

UNITS_S: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
PACE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|min|h))?")
LIMIT_RATE: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,6})?(s|min|h|d)")


def jobs_per_second(text: str) -> float:
    """`5/s`, `100/min`, `1000/h`; a bare number is per second."""
    match = PACE.fullmatch(text)
    rate = float(match[1]) / UNITS_S[match[2] or "s"] if match else 0.0
    if rate <= 0:
        raise Invalid(f"{text!r} is not a rate: write it as 5/s, 100/min or 1000/h")
    return rate


def limit_rate(text: str) -> tuple[int, int]:
    """`50/s`, `100/min`, `5000/h`, `1/d`, or `3/10s`: how many, and in how many microseconds."""
    match = LIMIT_RATE.fullmatch(text)
    if match is None or int(match[1]) == 0 or int(match[2] or 1) == 0:
        raise Invalid(f"{text!r} is not a rate: write it as 50/s, 100/min, 5000/h, 1/d or 3/10s")
    return int(match[1]), int(match[2] or 1) * UNITS_S[match[3]] * SECOND
