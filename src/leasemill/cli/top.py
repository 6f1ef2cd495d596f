"""`leasemill top`: queues, workers, running jobs and failures, live.

The store is read in a thread of its own, so that keys are answered while it is slow or away; what is shown then is the
latest reading, and a notice. Readings take a fifth of the time at most. No command is sent that changes anything.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
    from leasemill.cli.top_screen import Notes

REDRAWN_S: Final = 1.0
"""Leases count down at least this often, also where the store is read less often."""
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
    chosen = QueueOrder(order)
    if as_json:
        print_json(_as_json(_one_overview(store, interval, chosen)))
        return
    if once or not is_screen(sys.stdout):
        _print_once(_one_overview(store, interval, chosen))
    else:
        _Screen(StoreReader(store, interval), chosen).run()


def _one_overview(store: Store, interval_s: float, order: QueueOrder) -> Overview:
    rates = Rates()
    first = read(store)
    rates.add(first.counted())
    time.sleep(interval_s)
    second = read(store, first)
    rates.add(second.counted())
    return overview(second, rates, order=order)


def _as_json(shown: Overview) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(shown)
    return fields | {"at": instant(shown.at)}


def _print_once(shown: Overview) -> None:
    from rich.console import Console  # noqa: PLC0415  (slow to import)

    from leasemill.cli.top_screen import Notes, Picture  # noqa: PLC0415

    Console(highlight=False).print(Picture(shown, Notes(), is_whole=True), end="")


# StoreReading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What the reader knows. `read_at`, `failing_since` and `asked_at` are of the monotonic clock."""

    reading: StoreReading | None = None
    read_at: float = 0.0
    asked_at: float = 0.0
    failing_since: float | None = None
    error: str = ""
    fatal: LeasemillError | None = None
    """Trying again would not help."""


class StoreReader:
    """Reads a store again and again, in a thread. A store that is unavailable is asked again at the next interval."""

    def __init__(self, store: Store, interval_s: float) -> None:
        self.interval_s = interval_s
        self.rates = Rates()
        self.seen = Seen()
        self.on_change: Callable[[], None] = lambda: None
        self._store = store
        self._is_stopped = threading.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="leasemill-top", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._goes_on.set()

    @property
    def is_paused(self) -> bool:
        return not self._goes_on.is_set()

    def pause_or_go_on(self) -> None:
        if self.is_paused:
            self._goes_on.set()
        else:
            self._goes_on.clear()

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
        self.on_change()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            began = time.monotonic()
            self.look()
            took_s = time.monotonic() - began
            self._is_stopped.wait(max(self.interval_s - took_s, took_s * (1 / READING_SHARE - 1)))
            self._goes_on.wait()


def problem(seen: Seen, interval_s: float, now: float) -> str:
    """The notice about a store that does not answer; empty: it does."""
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
def _without_log_lines() -> Iterator[None]:
    """What a store logs about a lost connection would be written across the screen; the notice says it."""
    logger, handler = logging.getLogger("leasemill"), logging.NullHandler()
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


class _Screen:
    def __init__(self, reader: StoreReader, order: QueueOrder) -> None:
        self._reader = reader
        self._order = order
        self._paused_at: float | None = None

    def run(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (slow to import)
        from rich.live import Live  # noqa: PLC0415

        from leasemill.cli.terminal import Keyboard  # noqa: PLC0415  (not on Windows)
        from leasemill.cli.top_screen import Picture  # noqa: PLC0415

        reader = self._reader
        with _without_log_lines(), Keyboard() as keyboard:
            reader.on_change = keyboard.wake
            reader.start()
            try:
                with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
                    is_going_on = True
                    while is_going_on:
                        self._check()
                        live.update(Picture(self._overview(), self._notes(keyboard.is_there)), refresh=True)
                        is_going_on = self._obey(keyboard.wait(min(reader.interval_s, REDRAWN_S)))
            except KeyboardInterrupt:
                return
            finally:
                reader.stop()

    def _check(self) -> None:
        if self._reader.seen.fatal is not None:
            raise self._reader.seen.fatal

    def _obey(self, key: str | None) -> bool:
        """False: the user wants to leave."""
        match key:
            case "q" | "Q" | "":
                return False
            case "p" | "P" | " ":
                self._reader.pause_or_go_on()
                self._paused_at = time.monotonic() if self._reader.is_paused else None
            case "s" | "S":
                orders = list(QueueOrder)
                self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            case _:
                pass
        return True

    def _overview(self) -> Overview | None:
        seen = self._reader.seen
        if seen.reading is None:
            return None
        elapsed_s = max(0.0, self._now() - seen.read_at)
        return overview(seen.reading, self._reader.rates, elapsed_us=int(elapsed_s * SECOND), order=self._order)

    def _notes(self, has_keys: bool) -> Notes:
        from leasemill.cli.top_screen import Notes  # noqa: PLC0415  (slow to import)

        is_paused = self._paused_at is not None
        notice = "" if is_paused else problem(self._reader.seen, self._reader.interval_s, time.monotonic())
        return Notes(self._order, notice, is_paused, has_keys)

    def _now(self) -> float:
        return time.monotonic() if self._paused_at is None else self._paused_at
