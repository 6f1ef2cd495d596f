"""What was counted before, in rings of bounded length: one for each span that a chart covers. Pure.

A ring keeps one reading for each slot of time, the latest. Rates are differences of what only rises, divided by the
time between the two readings, so a missing slot is a gap in a chart and never a wrong number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct

from leasemill.kernel.model import SECOND


class TotalsAt(Struct, frozen=True):
    """What there was at one moment; `arrived`, `claimed`, `expired` and `refused` count since some time before."""

    at: int
    waiting: int
    running: int
    failed: int
    arrived: int
    claimed: int
    expired: int
    refused: int

    @property
    def left(self) -> int:
        """The jobs that have ended, without those that were made ready again."""
        return self.arrived - self.waiting - self.running


class Span(Struct, frozen=True):
    """The length of a chart, and of each of its slots."""

    name: str
    title: str
    slot_s: int
    slots: int

    @property
    def seconds(self) -> int:
        return self.slot_s * self.slots


SPANS: Final = (
    Span("15m", "15 min", 5, 180),
    Span("6h", "6 h", 120, 180),
    Span("7d", "7 d", 3600, 168),
)


class Dot(Struct, frozen=True):
    """A value of a series; None if it is not known."""

    at: int
    value: float | None


class History:
    """Rings of readings. One writer; readers get copies."""

    def __init__(self) -> None:
        self._rings: dict[str, deque[TotalsAt]] = {span.name: deque(maxlen=span.slots + 1) for span in SPANS}

    def add(self, reading: TotalsAt) -> None:
        for span in SPANS:
            ring = self._rings[span.name]
            if ring and _slot(ring[-1], span) == _slot(reading, span):
                ring[-1] = reading
            else:
                ring.append(reading)

    def readings(self, span: Span) -> list[TotalsAt]:
        return list(self._rings[span.name])

    def drawn(self, span: Span) -> tuple[Span, list[TotalsAt]]:
        """Return the readings for a chart of this span: the ring that goes back furthest, or the finest of several.

        The slots of a long span are long: while the history is young, its own ring has next to nothing.
        """
        rings = [(one, self.readings(one)) for one in SPANS if one.seconds <= span.seconds]
        return min(rings, key=lambda ring: ring[1][0].at if ring[1] else 0)

    def levels(self, span: Span, value: Callable[[TotalsAt], float]) -> list[Dot]:
        return [Dot(one.at, value(one)) for one in self.drawn(span)[1]]

    def rates(self, span: Span, count: Callable[[TotalsAt], int]) -> list[Dot]:
        """Return how fast a count rose, per second; None after a gap of several slots, and where it fell."""
        drawn, readings = self.drawn(span)
        return list(_rates(readings, count, 4 * drawn.slot_s))

    def known_s(self, span: Span, now: int) -> float:
        """Return for how many seconds there has been something to draw."""
        readings = self.drawn(span)[1]
        return (now - readings[0].at) / SECOND if readings else 0.0

    def recent_rate(self, count: Callable[[TotalsAt], int], within_s: int = 60) -> float | None:
        """Return the rate over the latest readings that cover this time."""
        readings = self.readings(SPANS[0])
        if len(readings) < 2:
            return None
        latest = readings[-1]
        earlier = next((one for one in readings if one.at >= latest.at - within_s * SECOND), readings[0])
        return _rate(earlier, latest, count)


def _slot(reading: TotalsAt, span: Span) -> int:
    return reading.at // (span.slot_s * SECOND)


def _rates(readings: list[TotalsAt], count: Callable[[TotalsAt], int], gap_s: float) -> Iterator[Dot]:
    for before, after in pairwise(readings):
        is_gap = after.at - before.at > gap_s * SECOND
        yield Dot(after.at, None if is_gap else _rate(before, after, count))


def _rate(before: TotalsAt, after: TotalsAt, count: Callable[[TotalsAt], int]) -> float | None:
    elapsed, rose = after.at - before.at, count(after) - count(before)
    return None if elapsed <= 0 or rose < 0 else rose * SECOND / elapsed
