"""How instants and durations are written for people: in the command line, in explanations and in log lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from leasemill.api.cron import parse_zone
from leasemill.errors import Invalid
from leasemill.kernel.model import NEVER, SECOND

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
    """In a time zone, with its offset; in UTC if this machine does not know the zone."""
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
