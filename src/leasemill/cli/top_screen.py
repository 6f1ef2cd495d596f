"""How the overview of `leasemill top` looks, in a terminal of any size. It draws what was read, and asks nothing.

No line is wrapped: what does not fit is cut, with an ellipsis, or the last columns are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from leasemill.kernel.model import REDRIVEN_STATES, SECOND, JobState
from leasemill.operator.overview import Overview, QueueOrder, RunningLine, WorkerLine
from leasemill.operator.wording import span

WIDE: Final = 120
"""From this many columns on, more is shown."""
HEAD_LINES: Final = 3
LEAST: Final = 8
"""The least width of a column that can be cut: what is shorter says nothing."""
UNLIMITED: Final = 10_000
ELLIPSIS: Final = "…"
BAD, WARNING, CALM, GOOD = "red", "yellow", "dim", "green"


class Notes(Struct, frozen=True):
    """What is shown beside the overview. `problem`: the store does not answer; what is shown is old."""

    order: QueueOrder = QueueOrder.NAME
    problem: str = ""
    is_paused: bool = False
    has_keys: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """An id, or a worker's name: it is cut in the middle, because the end distinguishes it."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self.text, options.max_width), self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text))


class Shown(NamedTuple):
    """A column, and how a line of the overview is shown in it."""

    column: Column
    cell: Callable[[Any], RenderableType]
    is_for_wide: bool = False


class Section(NamedTuple):
    """A table. `empty` is shown if it has no rows."""

    title: str
    columns: Sequence[Shown]
    empty: Text


class Picture:
    """An overview for a terminal; None: nothing was read yet. `is_whole`: all rows, where output is not a screen."""

    def __init__(self, shown: Overview | None, notes: Notes, *, is_whole: bool = False) -> None:
        self._overview = shown
        self._notes = notes
        self._is_whole = is_whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._is_whole:
            yield Group(*self._lines(console, options, None))
            return
        height = options.height or console.height
        layout = Layout()
        keys = [Layout(self._keys(), size=1)] if self._notes.has_keys else []
        layout.split_column(Layout(Group(*self._lines(console, options, height - len(keys)))), *keys)
        yield layout

    def _lines(self, console: Console, options: ConsoleOptions, height: int | None) -> Iterator[RenderableType]:
        yield from (self._title(), self._summary(), self._notice())
        shown = self._overview
        if shown is None:
            return
        lists = (shown.queues, shown.workers, shown.running, shown.failures)
        totals = (len(shown.queues), len(shown.workers), shown.leases_total, shown.failures_total)
        room = None if height is None else height - HEAD_LINES - 2 * len(lists) + 1
        for number, rows in enumerate(_shared([len(one) for one in lists], room)):
            section, visible = SECTIONS[number], lists[number][:rows]
            if number:
                yield ""
            is_more = section is QUEUES and "queues" in shown.is_part
            yield _table(section, visible, _part(len(visible), totals[number], is_more), console, options)
            if not visible:
                yield section.empty

    def _title(self) -> RenderableType:
        shown = self._overview
        if shown is None:
            return _line(("leasemill top", "bold cyan"))
        clock = f"{datetime.fromtimestamp(shown.at / SECOND).astimezone():%H:%M:%S}"
        grid = Table.grid(
            Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True), padding=(0, 2, 0, 0), expand=True
        )
        grid.add_row(Text("leasemill top", "bold cyan"), Name(shown.store), Text(clock, CALM))
        return grid

    def _summary(self) -> RenderableType:
        shown = self._overview
        if shown is None:
            return _line(("reading the store …", CALM))
        counts = _line()
        for state in JobState:
            count = shown.jobs[state]
            style = BAD if count and state in REDRIVEN_STATES else "bold"
            counts.append(f"{count:,}", style).append(f" {state.value}  ", CALM)
        grid = Table.grid(
            Column(ratio=1, no_wrap=True, overflow="ellipsis"), Column(no_wrap=True), padding=(0, 2, 0, 0), expand=True
        )
        grid.add_row(counts, f"in {_rate(shown.in_per_s)}/s  out {_rate(shown.out_per_s)}/s")
        return grid

    def _notice(self) -> Text:
        if self._notes.problem:
            return _line((printable(self._notes.problem), "bold red"))
        return _line(("paused: p continues", "bold yellow")) if self._notes.is_paused else Text()

    def _keys(self) -> Text:
        pause = "continue" if self._notes.is_paused else "pause"
        keys = (("q", "quit"), ("p", pause), ("s", f"sort queues, now by {self._notes.order.value}"))
        return _line(*(part for key, what in keys for part in ((f"{key} ", "bold cyan"), (f"{what}   ", CALM))))


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _shared(counts: Sequence[int], room: int | None) -> list[int]:
    """Return how many rows each section gets. The others get what a short one does not need."""
    wanted = [max(1, count) for count in counts]
    given = wanted if room is None else [1] * len(wanted)
    while room is not None and sum(given) < min(room, sum(wanted)):
        short = [index for index, one in enumerate(wanted) if given[index] < one]
        given[min(short, key=lambda index: given[index])] += 1
    return given


def _part(count: int, total: int, is_more: bool) -> str:
    """Say which part of the whole is shown, after the title of a section."""
    if count < total or is_more:
        return f" {count:,} of {total:,}{'+' if is_more else ''}"
    return f" {total:,}" if total else ""


def _table(section: Section, lines: Sequence[object], part: str, console: Console, options: ConsoleOptions) -> Table:
    """Return the table with as many of its columns as the width has room for."""
    is_wide = options.max_width >= WIDE
    first = Column(Text(section.title + part, "bold not dim"), width=36 if is_wide else 22, no_wrap=True)
    shown = [one for one in section.columns if is_wide or not one.is_for_wide]
    while True:
        # A table writes its cells into the columns that it is given: they are copied.
        columns = [first.copy(), *(one.column.copy() for one in shown[1:])]
        can_grow = any(column.ratio for column in columns)
        table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=CALM, expand=can_grow)
        for line in lines:
            table.add_row(*(one.cell(line) for one in shown))
        # A measurement is cut to the width that is asked for.
        least = Measurement.get(console, options.update(width=UNLIMITED), table).minimum
        if len(shown) == 1 or least <= options.max_width:
            return table
        shown.pop()


# The sections --------------------------------------------------------------------------------------------------


def _number(title: str, least: int, cell: Callable[[Any], Text], is_for_wide: bool = False) -> Shown:
    """Return a column of numbers. `least`: so wide that the table does not move while they change."""
    return Shown(Column(title, justify="right", min_width=max(least, len(title)), no_wrap=True), cell, is_for_wide)


def _text(title: str, share: int, cell: Callable[[Any], RenderableType], is_for_wide: bool = False) -> Shown:
    """Return a column that is cut where there is no room. It gets this share of what the others leave."""
    return Shown(Column(title, width=LEAST, ratio=share, no_wrap=True, overflow="ellipsis"), cell, is_for_wide)


def _word(title: str, least: int, cell: Callable[[Any], Text], is_for_wide: bool = False) -> Shown:
    return Shown(Column(title, min_width=least, no_wrap=True), cell, is_for_wide)


def _jobs(state: JobState, least: int = 6, is_for_wide: bool = False) -> Shown:
    style = BAD if state in REDRIVEN_STATES else ""
    return _number(state.value, least, lambda it: _count(it.jobs[state], style), is_for_wide)


def _worker_state(it: WorkerLine) -> Text:
    if it.is_stale:
        return Text("no heartbeat", BAD)
    if it.stuck:
        return Text(f"{it.stuck} stuck", BAD)
    if it.is_stopping:
        return Text("stopping", WARNING)
    return Text("quiet", WARNING) if it.is_quiet else Text("running", GOOD)


def _risk(it: RunningLine) -> str:
    return BAD if it.is_at_risk else ""


QUEUES: Final = Section(
    "QUEUES",
    (
        _text("", 1, lambda it: _cell(f"{it.queue} (paused)", WARNING) if it.is_paused else _cell(it.queue)),
        _jobs(JobState.READY, 9),
        _jobs(JobState.LEASED),
        _number("in/s", 7, lambda it: Text(_rate(it.in_per_s), "" if it.in_per_s else CALM)),
        _number("out/s", 7, lambda it: Text(_rate(it.out_per_s), "" if it.out_per_s else CALM)),
        _number("oldest due", 10, lambda it: _span(it.oldest_due_s)),
        _jobs(JobState.SUCCEEDED, is_for_wide=True),
        _jobs(JobState.FAILED),
        _jobs(JobState.DEAD, is_for_wide=True),
        _jobs(JobState.CANCELLED, is_for_wide=True),
    ),
    Text("no queue has had a job yet", CALM),
)
WORKERS: Final = Section(
    "WORKERS",
    (
        _text("", 1, lambda it: Name(it.worker)),
        _number(
            "slots", 7, lambda it: Text(f"{it.running + it.stuck}/{it.slots}", "" if it.running + it.stuck else CALM)
        ),
        _number("heartbeat", 9, lambda it: _span(it.heartbeat_s, BAD if it.is_stale else "")),
        _word("state", 12, _worker_state),
        _text("host", 2, lambda it: Name(it.host)),
        _word("version", 7, lambda it: _cell(it.version or "-", CALM)),
        _number("up", 8, lambda it: _span(it.up_s), is_for_wide=True),
        _number("done", 9, lambda it: _count(it.succeeded), is_for_wide=True),
        _text("queues", 3, lambda it: _cell(", ".join(it.queues)), is_for_wide=True),
    ),
    Text("no worker has sent a heartbeat", WARNING),
)
RUNNING: Final = Section(
    "RUNNING",
    (
        _text("", 1, lambda it: Name(it.job, _risk(it))),
        _number("lease left", 10, lambda it: _span(it.left_s, _risk(it)) if it.left_s > 0 else Text("expired", BAD)),
        _number("ran", 8, lambda it: _span(it.ran_s)),
        _number("try", 3, lambda it: Text(str(it.attempt), WARNING if it.attempt > 1 else CALM)),
        _text("kind", 3, lambda it: _cell(it.kind)),
        _text("worker", 2, lambda it: Name(it.worker, _risk(it))),
        _text("queue", 2, lambda it: _cell(it.queue), is_for_wide=True),
        _text("progress", 2, lambda it: _cell(it.progress), is_for_wide=True),
    ),
    Text("no job is running", CALM),
)
FAILURES: Final = Section(
    "FAILURES",
    (
        _text("", 1, lambda it: Name(it.job)),
        _number("ago", 8, lambda it: _span(it.seconds_ago)),
        _text("kind", 1, lambda it: _cell(it.kind)),
        _text("queue", 1, lambda it: _cell(it.queue), is_for_wide=True),
        _word("state", 6, lambda it: Text(it.state.value, BAD), is_for_wide=True),
        _number("tries", 5, lambda it: Text(str(it.attempts)), is_for_wide=True),
        _text("error", 4, lambda it: _cell(" ".join(it.error.partition("\n")[0].split()) or "-")),
    ),
    Text("no job has failed", CALM),
)
SECTIONS: Final = (QUEUES, WORKERS, RUNNING, FAILURES)


# How values look -----------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Return the text without characters that would move the cursor."""
    return "".join(one if one.isprintable() else " " for one in text)


def shortened(text: str, width: int) -> str:
    """Cut the text in the middle to a width in cells. The end gets two thirds of it."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    end = max(0, width - 1) * 2 // 3
    begin = set_cell_size(text, max(0, width - 1 - end))
    while cell_len(text) > end:
        text = text[1:]
    return begin + ELLIPSIS + text


def _cell(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _count(count: int, style: str = "") -> Text:
    return Text(f"{count:,}", style if count else CALM)


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def _span(seconds: float | None, style: str = "") -> Text:
    """Write a duration, in tenths of a second at the finest: a number that always changes cannot be read."""
    if seconds is None:
        return Text("-", CALM)
    return Text(f"{max(0.0, seconds):.1f} s" if seconds < 1 else span(int(seconds * SECOND)), style)
