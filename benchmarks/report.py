"""How every benchmark reports: a table of what was measured, then the bars it must meet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Bar(NamedTuple):
    """Something that must hold: a measured figure against its bound."""

    name: str
    measured: float
    bound: float
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def medians(run: Callable[[], float], times: int) -> float:
    return median(run() for _ in range(times))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints nothing if there are no rows."""
    if not rows:
        return
    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=140).print(shown)


def finish(bars: Sequence[Bar], not_measured: Sequence[str] = ()) -> None:
    """Print the bars, and exit with 1 if one is missed or should have been measured and was not, naming them."""
    table(
        "bars",
        ("bar", "measured", "bound", ""),
        [
            (
                bar.name,
                f"{bar.measured:,.2f}",
                f"{'≥' if bar.at_least else '≤'} {bar.bound:,.2f}",
                "met" if bar.is_met else "MISSED",
            )
            for bar in bars
        ],
    )
    missed = [bar.name for bar in bars if not bar.is_met]
    if missed:
        print("missed: " + "; ".join(missed), file=sys.stderr)
    if not_measured:
        print("not measured: " + "; ".join(not_measured), file=sys.stderr)
    if missed or not_measured:
        sys.exit(1)
