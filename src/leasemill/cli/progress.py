"""Progress of commands that take a while, on standard error: a bar on a terminal, elsewhere a line every few seconds.

A command that is done soon shows nothing, and so does one with --json or --quiet. Standard output is never written to,
except for lines that a command passes to `echo`, so that they do not run into the bar.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import click

from leasemill.cli.output import is_screen
from leasemill.operator.wording import counted

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

BAR_AFTER_S: Final = 0.5
BAR_EVERY_S: Final = 0.1
LINE_EVERY_S: Final = 5.0
RATE_AFTER_S: Final = 1.0
"""Before this, a rate says nothing."""
MEGABYTES: Final = "MB"

quiet_option = click.option("--quiet", "is_quiet", is_flag=True, help="Print no progress on standard error.")


class ShownProgress:
    """Shows how far a command is. `what` completes the sentence: "12 jobs redriven".

    `unit`: what is counted; empty: nothing is, and only the time is shown. `total`: None if it is not known.
    """

    def __init__(
        self,
        what: str,
        unit: str = "",
        total: int | None = None,
        *,
        is_quiet: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.unit = unit
        self.count = 0
        self.total = total
        self.share: float | None = None
        """The share that is done, if something else than the count tells it."""
        self.note = ""
        """What the command waits for. It is shown in place of a rate, which would be wrong."""
        self._is_quiet = is_quiet
        self._monotonic = monotonic
        self._began_at = monotonic()
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self._is_quiet:
            show = self._show_bar if is_screen(sys.stderr) else self._print_lines
            self._thread = threading.Thread(target=show, name="leasemill-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def add(self, count: int, share: float | None = None) -> None:
        self.reach(self.count + count, share=share)

    def reach(self, count: int, total: int | None = None, share: float | None = None) -> None:
        self.count = count
        self.total = self.total if total is None else total
        self.share = share

    def echo(self, text: str) -> None:
        """Print on standard output, above the bar if there is one."""
        with self._lock:
            if self._bar is not None and sys.stdout.isatty():
                from rich.text import Text

                self._bar.console.print(Text(text), soft_wrap=True)
            else:
                click.echo(text)

    @property
    def done_share(self) -> float | None:
        """The share that is done, from 0 to 1; None if it is not known."""
        if self.share is None and self.total:
            return min(1.0, self.count / self.total)
        return self.share

    def sentence(self) -> str:
        elapsed_s = self._monotonic() - self._began_at
        if not self.unit:
            return f"{self.what}, {_duration(elapsed_s)} so far"
        parts = [f"{_amount(self.count, self.total, self.unit)} {self.what}"]
        if self.note:
            parts.append(self.note)
        elif elapsed_s >= RATE_AFTER_S and self.count:
            parts.append(f"{_rate(self.count / elapsed_s, self.unit)}/s")
            share = self.done_share
            if share:
                parts.append(f"{_duration(elapsed_s * (1 - share) / share)} left")
        return ", ".join(parts)

    def _print_lines(self) -> None:
        while not self._is_over.wait(LINE_EVERY_S):
            click.echo(self.sentence(), err=True)

    def _show_bar(self) -> None:
        if self._is_over.wait(BAR_AFTER_S):
            return
        bar = _new_bar()
        with self._lock:
            bar.start()
            self._bar = bar
        task = bar.add_task("")
        is_over = False
        while not is_over:
            share = self.done_share
            # A bar whose total is None moves to and fro: the whole is not known.
            bar.update(task, description=self.sentence(), total=None if share is None else 1.0, completed=share or 0.0)
            is_over = self._is_over.wait(BAR_EVERY_S)
        with self._lock:
            self._bar = None
            bar.stop()


def _new_bar() -> Bar:
    from rich.console import Console  # slow to import, and only for terminals
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    return Progress(
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=Console(stderr=True, highlight=False),
        transient=True,
        redirect_stdout=False,
    )


def _amount(count: int, total: int | None, unit: str) -> str:
    if unit == MEGABYTES:
        of_total = "" if total is None else f" of {_number(total, unit)}"
        return f"{_number(count, unit)}{of_total} {unit}"
    return counted(count, unit) if total is None else f"{count:,} of {counted(total, unit)}"


def _number(count: float, unit: str) -> str:
    return f"{count / 1e6:,.1f}" if unit == MEGABYTES else f"{count:,.0f}"


def _rate(per_second: float, unit: str) -> str:
    if unit == MEGABYTES:
        return f"{_number(per_second, unit)} {unit}"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _duration(seconds: float) -> str:
    """Write a duration in whole seconds: it is an estimate, or grows while it is read."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_s} s" if minutes else f"{whole_s} s"
