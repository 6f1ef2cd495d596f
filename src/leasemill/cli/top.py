"""`leasemill top`: queues, workers, running jobs and failures, live.

The store is read in a thread of its own, so that keys are answered while it is slow or away; what is shown then is the
latest reading, and a notice. Readings take a fifth of the time at most. No command is sent that changes anything.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

import click
import msgspec

from leasemill.cli.output import is_screen, print_json
from leasemill.cli.store_options import on_store
from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel.model import SECOND
from leasemill.operator.overview import Overview, QueueOrder, StoreReading, overview, read
from leasemill.operator.rates import Rates
from leasemill.operator.wording import instant, span
from leasemill.store.base import Store

if TYPE_CHECKING:
    from leasemill.cli.top_screen import Picture

REDRAWN_S: Final = 0.2
"""The screen is drawn this often, in the terminal's size and with the latest reading; leases count down."""
READING_SHARE: Final = 0.2
LATE_S: Final = 3.0
"""A reading that takes this much longer than the interval is noticed."""


@click.command()
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Seconds between two readings.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice([order.value for order in QueueOrder]),
    default=QueueOrder.NAME.value,
    show_default=True,
    help="How queues are sorted: by name, most ready jobs first, or longest due first.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit. Reads twice, an interval apart, for the rates.")
@on_store
def top(store: Store, interval: float, order: str, once: bool, as_json: bool) -> None:
    """Watch queues, workers, running jobs and failures.

    Keys: q quits, p pauses, s sorts the queues. Where standard output is not a terminal, one frame is printed, as with
    --once.
    """
    if as_json:
        shown = _one_overview(store, interval, QueueOrder(order))
        print_json({**msgspec.to_builtins(shown), "at": instant(shown.at)})
    elif once or not is_screen(sys.stdout):
        _print_once(_one_overview(store, interval, QueueOrder(order)))
    else:
        _Screen(StoreReader(store, interval), QueueOrder(order)).run()


def _one_overview(store: Store, interval_s: float, order: QueueOrder) -> Overview:
    rates = Rates()
    first = read(store)
    rates.add(first.counted())
    time.sleep(interval_s)
    second = read(store, first)
    rates.add(second.counted())
    return overview(second, rates, order=order)


def _print_once(shown: Overview) -> None:
    from rich.console import Console

    from leasemill.cli.top_screen import Notes, Picture

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(Picture(shown, Notes(), is_whole=True))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


# StoreReading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the reader. `read_at`, `failing_since` and `asked_at` are of the monotonic clock."""

    reading: StoreReading | None = None
    read_at: float = 0.0
    asked_at: float = 0.0
    failing_since: float | None = None
    error: str = ""
    fatal: LeasemillError | None = None
    """An error that trying again would not change."""


class StoreReader:
    """Reads a store again and again, in a thread. A store that is unavailable is asked again at the next interval."""

    def __init__(self, store: Store, interval_s: float) -> None:
        self.interval_s = interval_s
        self.rates = Rates()
        self.seen = Seen()
        self.paused_at: float | None = None
        self._store = store
        self._is_stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="leasemill-top", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def look(self) -> None:
        """Read once. A rate over a time in which nothing could be read would be an average of an outage."""
        before, asked_at = self.seen, time.monotonic()
        self.seen = Seen(before.reading, before.read_at, asked_at, before.failing_since, before.error)
        try:
            reading = read(self._store, before.reading)
        except (Unavailable, OSError) as error:
            since = asked_at if before.failing_since is None else before.failing_since
            self.seen = Seen(before.reading, before.read_at, 0.0, since, str(error))
        except LeasemillError as error:
            self.seen = Seen(before.reading, before.read_at, fatal=error)
        else:
            self.rates.add(reading.counted())
            self.seen = Seen(reading, time.monotonic())

    def _run(self) -> None:
        wait_s = 0.0
        while not self._is_stopped.wait(wait_s):
            if self.paused_at is not None:
                wait_s = REDRAWN_S
                continue
            began = time.monotonic()
            self.look()
            took_s = time.monotonic() - began
            wait_s = max(self.interval_s - took_s, took_s * (1 / READING_SHARE - 1))


def problem(seen: Seen, interval_s: float, now: float) -> str:
    """Return the notice about a store that does not answer; empty if it does."""
    age = "" if seen.reading is None else f"; showing what was read {_span(now - seen.read_at)} ago"
    if seen.failing_since is not None:
        return f"store unavailable for {_span(now - seen.failing_since)}{age}: {seen.error}"
    if seen.asked_at and now - seen.asked_at > interval_s + LATE_S:
        return f"the store has not responded for {_span(now - seen.asked_at)}{age}"
    return ""


def _span(seconds: float) -> str:
    return span(int(max(1.0, seconds) * SECOND))


# The screen ----------------------------------------------------------------------------------------------------


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Yield standard input, whose keys can be read one by one, or None if it is not a terminal. It is restored.

    Ctrl-C interrupts as usual. Ctrl-Z does nothing: a stopped program would leave its screen behind.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    import termios  # not on Windows
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        settings = termios.tcgetattr(keyboard)
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)


def _next_key(keyboard: int | None) -> str | None:
    """Wait a moment for a key and return it; None if there was none, empty if the terminal is gone."""
    if keyboard is None:
        time.sleep(REDRAWN_S)
        return None
    ready, _, _ = select.select([keyboard], [], [], REDRAWN_S)
    return os.read(keyboard, 1).decode(errors="replace") if ready else None


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


class _Screen:
    def __init__(self, reader: StoreReader, order: QueueOrder) -> None:
        self._reader = reader
        self._order = order

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live

        logging.disable()  # what a store logs would be written across the screen; the notice says it
        signal.signal(signal.SIGTERM, _exit)  # so that the terminal is restored
        try:
            with (
                _keyboard() as keyboard,
                Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live,
            ):
                self._reader.start()
                key: str | None = None
                while self._obey(key):
                    if self._reader.seen.fatal is not None:
                        raise self._reader.seen.fatal
                    live.update(self._picture(has_keys=keyboard is not None), refresh=True)
                    key = _next_key(keyboard)
        except KeyboardInterrupt:
            return
        finally:
            self._reader.stop()

    def _obey(self, key: str | None) -> bool:
        """Do what a key asks for. Returns False if the user wants to leave."""
        match key:
            case "q" | "Q" | "":
                return False
            case "p" | "P" | " ":
                self._reader.paused_at = time.monotonic() if self._reader.paused_at is None else None
            case "s" | "S":
                orders = list(QueueOrder)
                self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            case _:
                pass
        return True

    def _picture(self, *, has_keys: bool) -> Picture:
        from leasemill.cli.top_screen import Notes, Picture

        reader, seen, shown = self._reader, self._reader.seen, None
        now = time.monotonic() if reader.paused_at is None else reader.paused_at
        if seen.reading is not None:
            elapsed_us = int(max(0.0, now - seen.read_at) * SECOND)
            shown = overview(seen.reading, reader.rates, elapsed_us=elapsed_us, order=self._order)
        is_paused = reader.paused_at is not None
        notice = "" if is_paused else problem(seen, reader.interval_s, now)
        return Picture(shown, Notes(self._order, notice, is_paused, has_keys))
