"""Charts as shapes: where lines, areas and labels of a series lie in a picture. Pure; a template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from leasemill.dashboard.history import Dot, Span
from leasemill.kernel.model import SECOND

WIDTH = 600
HEIGHT = 120
YOUNG_S: Final = (60, 2 * 60, 5 * 60, 15 * 60, 30 * 60, 3600, 3 * 3600, 6 * 3600, 24 * 3600, 3 * 24 * 3600)
"""The spans of charts while their history is younger than their own span."""


class ChartLine(Struct, frozen=True):
    """A series as it is drawn; `tone` names its colour in the style sheet."""

    name: str
    tone: str
    strokes: list[str]
    """One path for each stretch without a gap."""
    fills: list[str]
    latest: float | None
    dots: list[Dot]


class AxisMark(Struct, frozen=True):
    """A label on an axis; `offset`: a percentage of the width or the height."""

    offset: float
    text: str


class Chart(Struct, frozen=True):
    title: str
    unit: str
    lines: list[ChartLine]
    most: float
    across: list[AxisMark]
    up: list[AxisMark]
    first_at: int
    last_at: int

    @property
    def is_empty(self) -> bool:
        return not any(line.strokes for line in self.lines)


class Series(Struct, frozen=True):
    name: str
    tone: str
    dots: list[Dot]


def chart(title: str, unit: str, seconds: int, now: int, series: Sequence[Series]) -> Chart:
    first_at = now - seconds * SECOND
    inside = [[dot for dot in one.dots if dot.at >= first_at] for one in series]
    most = nice_ceiling(max((dot.value for dots in inside for dot in dots if dot.value is not None), default=0.0))
    lines = [_line(one, dots, first_at, now, most) for one, dots in zip(series, inside, strict=True)]
    up = [AxisMark(100 - 100 * share, short_number(most * share)) for share in (0.0, 0.5, 1.0)]
    return Chart(title, unit, lines, most, across(first_at, now), up, first_at, now)


def window_s(span: Span, known_s: float) -> int:
    """Return how much of the span is drawn, in all charts of a page. It is less while there is little to draw."""
    return next((seconds for seconds in YOUNG_S if known_s <= seconds < span.seconds), span.seconds)


def _line(series: Series, dots: list[Dot], first_at: int, now: int, most: float) -> ChartLine:
    stretches: list[list[tuple[float, float]]] = [[]]
    for dot in dots:
        if dot.value is None:
            stretches.append([])
        else:
            x = WIDTH * (dot.at - first_at) / max(1, now - first_at)
            stretches[-1].append((x, HEIGHT - HEIGHT * dot.value / most))
    drawn = [stretch for stretch in stretches if stretch]
    strokes = [_path(stretch) for stretch in drawn]
    fills = [f"{_path(one)}L{one[-1][0]:.1f},{HEIGHT}L{one[0][0]:.1f},{HEIGHT}Z" for one in drawn]
    latest = next((dot.value for dot in reversed(dots) if dot.value is not None), None)
    return ChartLine(series.name, series.tone, strokes, fills, latest, dots)


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:  # a single reading is drawn as a short dash
        x, y = points[0]
        points = [(max(0.0, x - 2), y), (x, y)]
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def nice_ceiling(value: float) -> float:
    """Return the next of 1, 2, 4, 6, 8, 10, 20, … that is not below the value. Its half is marked, too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1.0, 2.0, 4.0, 6.0, 8.0) if step * power >= value), 10.0 * power)


def across(first_at: int, last_at: int, count: int = 4) -> list[AxisMark]:
    seconds = (last_at - first_at) / SECOND
    form = "%H:%M:%S" if seconds <= 5 * 60 else "%H:%M" if seconds <= 24 * 3600 else "%a %d %b"
    steps = [first_at + (last_at - first_at) * index // count for index in range(1, count)]
    return [
        AxisMark(100 * index / count, datetime.fromtimestamp(at / SECOND, UTC).strftime(form))
        for index, at in enumerate(steps, 1)
    ]


def short_number(value: float) -> str:
    """Write a number as `0.5`, `12`, `1.2k` or `3M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
