"""How the overview of `leasemill top` looks, in a terminal of any size. Asks nothing: it draws what was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from leasemill.cli.columns import Cell, Column, shortened, table
from leasemill.kernel.model import SECOND, JobState
from leasemill.operator.overview import FailureLine, Overview, QueueLine, QueueOrder, RunningLine, WorkerLine
from leasemill.operator.wording import span

WIDE: Final = 120
"""From this many columns on, more is shown."""
LEAST_ROWS: Final = 1
BAD, WARNING, CALM, GOOD = "red", "yellow", "dim", "green"


class Notes(Struct, frozen=True):
    """What is shown beside the overview. `problem`: the store does not answer; what is shown is old."""

    order: QueueOrder = QueueOrder.NAME
    problem: str = ""
    is_paused: bool = False
    has_keys: bool = False


class Section(NamedTuple):
    """A table. `draw` takes a number of rows and a width."""

    length: int
    draw: Callable[[int, int], list[Text]]


class Picture:
    """An overview for a terminal; None: nothing was read yet. `is_whole`: all rows, where output is not a screen."""

    def __init__(self, shown: Overview | None, notes: Notes, *, is_whole: bool = False) -> None:
        self._overview = shown
        self._notes = notes
        self._is_whole = is_whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = None if self._is_whole else options.height or console.height
        for number, line in enumerate(self.lines(options.max_width, height)):
            if number:
                yield Text("\n", end="")
            yield line
        if self._is_whole:
            yield Text("\n", end="")

    def lines(self, width: int, height: int | None) -> list[Text]:
        head = [self._title(width), self._summary(width), self._notice(width)]
        if self._overview is None:
            return head[:height]
        sections = _sections(self._overview)
        keys = [self._keys(width)] if self._notes.has_keys else []
        fixed = len(head) + len(keys) + 2 * len(sections) - 1
        rows = _shared([one.length for one in sections], None if height is None else height - fixed)
        body = [
            line
            for section, room in zip(sections, rows, strict=True)
            for line in (*section.draw(room, width), Text(end=""))
        ]
        body.pop()
        if height is None:
            return head + body
        body = body[: max(0, height - len(head) - len(keys))]
        filling = [Text(end="") for _ in range(height - len(head) - len(body) - len(keys))]
        return (head + body + filling + keys)[:height]

    def _title(self, width: int) -> Text:
        shown = self._overview
        clock = "" if shown is None else f"{datetime.fromtimestamp(shown.at / SECOND).astimezone():%H:%M:%S}"
        line = Text("leasemill top", "bold cyan", no_wrap=True, end="")
        if shown is not None:
            room = width - len(line) - len(clock) - 4
            line.append("  " + shortened(shown.store, room, keeps_end=True), "default not bold")
        line.append(clock.rjust(max(0, width - line.cell_len)), CALM + " not bold")
        return line

    def _summary(self, width: int) -> Text:
        shown = self._overview
        line = Text(no_wrap=True, end="")
        if shown is None:
            return line.append("reading the store …", CALM)
        right = f"in {_rate(shown.in_per_s)}/s  out {_rate(shown.out_per_s)}/s"
        for state in JobState:
            count = f"{shown.jobs[state]:,}"
            if line.cell_len + len(count) + len(state.value) + 3 + len(right) > width:
                break
            line.append(count, _state_style(state, shown.jobs[state]) or "bold").append(f" {state.value}  ", CALM)
        line.append(right.rjust(width - line.cell_len))
        line.truncate(width, overflow="ellipsis")
        return line

    def _notice(self, width: int) -> Text:
        if self._notes.problem:
            return Text(shortened(self._notes.problem, width), "bold red", no_wrap=True, end="")
        if self._notes.is_paused:
            return Text("paused: p continues", "bold yellow", no_wrap=True, end="")
        return Text(end="")

    def _keys(self, width: int) -> Text:
        line = Text(no_wrap=True, end="")
        pause = "continue" if self._notes.is_paused else "pause"
        for key, what in (("q", "quit"), ("p", pause), ("s", f"sort queues, now by {self._notes.order.value}")):
            line.append(f"{key} ", "bold cyan").append(f"{what}   ", CALM)
        line.truncate(width, overflow="ellipsis")
        return line


def _shared(counts: Sequence[int], room: int | None) -> list[int]:
    """How many rows each section gets: what a short one does not need, the others get."""
    wanted = [max(LEAST_ROWS, count) for count in counts]
    if room is None or sum(wanted) <= room:
        return wanted
    given = [min(LEAST_ROWS, one) for one in wanted]
    while sum(given) < room:
        short = [index for index, one in enumerate(wanted) if given[index] < one]
        given[min(short, key=lambda index: given[index])] += 1
    return given


# The sections --------------------------------------------------------------------------------------------------


def _sections(shown: Overview) -> list[Section]:
    return [
        Section(len(shown.queues), lambda rows, width: _queues(shown, rows, width)),
        Section(len(shown.workers), lambda rows, width: _workers(shown, rows, width)),
        Section(len(shown.running), lambda rows, width: _running(shown, rows, width)),
        Section(len(shown.failures), lambda rows, width: _failures(shown, rows, width)),
    ]


def _headed(name: str, shown: int, total: int, *, is_more: bool = False) -> str:
    """The title says what part of the whole is shown."""
    if shown < total or is_more:
        return f"{name} {shown:,} of {total:,}{'+' if is_more else ''}"
    return f"{name} {total:,}" if total else name


def _first(width: int) -> int:
    """The width of the first column, the same in all sections: an id fits into the wide one."""
    return 36 if width >= WIDE else 22


def _or_none(lines: list[Text], sentence: str, style: str = CALM) -> list[Text]:
    return lines if len(lines) > 1 else [*lines, Text(sentence, style, no_wrap=True, overflow="ellipsis", end="")]


def _queues(shown: Overview, rows: int, width: int) -> list[Text]:
    first = _first(width)
    title = _headed("QUEUES", min(rows, len(shown.queues)), len(shown.queues), is_more="queues" in shown.is_part)
    columns = [
        Column(title, share=1, least=first, most=first),
        Column("ready", is_right=True, least=9),
        Column("leased", is_right=True, least=6),
        Column("in/s", is_right=True, least=7),
        Column("out/s", is_right=True, least=7),
        Column("oldest due", is_right=True, least=10),
    ]
    states = [JobState.FAILED]
    if width >= WIDE:
        states = [JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELLED]
    columns += [Column(state.value, is_right=True, least=6) for state in states]
    found = [_queue_row(queue, states) for queue in shown.queues[:rows]]
    return _or_none(table(columns, found, width), "no queue has had a job yet")


def _queue_row(queue: QueueLine, states: Sequence[JobState]) -> list[Cell]:
    name = Cell(f"{queue.queue} (paused)", WARNING) if queue.is_paused else Cell(queue.queue)
    return [
        name,
        _count(queue.jobs[JobState.READY]),
        _count(queue.jobs[JobState.LEASED]),
        Cell(_rate(queue.in_per_s), "" if queue.in_per_s else CALM),
        Cell(_rate(queue.out_per_s), "" if queue.out_per_s else CALM),
        Cell("-", CALM) if queue.oldest_due_s is None else Cell(_span(queue.oldest_due_s)),
        *(_count(queue.jobs[state], _state_style(state, queue.jobs[state])) for state in states),
    ]


def _workers(shown: Overview, rows: int, width: int) -> list[Text]:
    is_wide, first = width >= WIDE, _first(width)
    columns = [
        Column(
            _headed("WORKERS", min(rows, len(shown.workers)), len(shown.workers)),
            share=3,
            keeps_end=True,
            least=first,
            most=first,
        ),
        Column("slots", is_right=True, least=7),
        Column("heartbeat", is_right=True, least=9),
        Column("state", least=12),
        Column("host", share=2, keeps_end=True),
        Column("version"),
    ]
    if is_wide:
        columns += [
            Column("up", is_right=True, least=8),
            Column("done", is_right=True, least=9),
            Column("queues", share=3),
        ]
    found = [row if is_wide else row[:6] for row in map(_worker_row, shown.workers[:rows])]
    return _or_none(table(columns, found, width), "no worker has sent a heartbeat", WARNING)


def _worker_row(worker: WorkerLine) -> list[Cell]:
    busy = worker.running + worker.stuck
    return [
        Cell(worker.worker),
        Cell(f"{busy}/{worker.slots}", "" if busy else CALM),
        Cell(_span(worker.heartbeat_s), BAD if worker.is_stale else ""),
        _worker_state(worker),
        Cell(worker.host),
        Cell(worker.version or "-", CALM),
        Cell(_span(worker.up_s)),
        _count(worker.succeeded),
        Cell(", ".join(worker.queues)),
    ]


def _worker_state(worker: WorkerLine) -> Cell:
    if worker.is_stale:
        return Cell("no heartbeat", BAD)
    if worker.stuck:
        return Cell(f"{worker.stuck} stuck", BAD)
    if worker.is_stopping:
        return Cell("stopping", WARNING)
    return Cell("quiet", WARNING) if worker.is_quiet else Cell("running", GOOD)


def _running(shown: Overview, rows: int, width: int) -> list[Text]:
    is_wide, first = width >= WIDE, _first(width)
    visible = shown.running[:rows]
    columns = [
        Column(_headed("RUNNING", len(visible), shown.leases_total), share=3, keeps_end=True, least=first, most=first),
        Column("lease left", is_right=True, least=10),
        Column("ran", is_right=True, least=8),
        Column("try", is_right=True),
        Column("kind", share=3),
        Column("worker", share=2, keeps_end=True),
    ]
    if is_wide:
        columns += [Column("queue", share=2), Column("progress", share=2)]
    found = [row if is_wide else row[:6] for row in map(_running_row, visible)]
    return _or_none(table(columns, found, width), "no job is running")


def _running_row(one: RunningLine) -> list[Cell]:
    style = BAD if one.is_at_risk else ""
    left = f"{_span(one.left_s)}" if one.left_s > 0 else "expired"
    return [
        Cell(one.job, style),
        Cell(left, style),
        Cell("-", CALM) if one.ran_s is None else Cell(_span(one.ran_s)),
        Cell(str(one.attempt), WARNING if one.attempt > 1 else CALM),
        Cell(one.kind),
        Cell(one.worker, style),
        Cell(one.queue),
        Cell(one.progress),
    ]


def _failures(shown: Overview, rows: int, width: int) -> list[Text]:
    is_wide, first = width >= WIDE, _first(width)
    visible = shown.failures[:rows]
    columns = [
        Column(
            _headed("FAILURES", len(visible), shown.failures_total), share=3, keeps_end=True, least=first, most=first
        ),
        Column("ago", is_right=True, least=8),
        Column("kind", share=1),
    ]
    if is_wide:
        columns += [Column("queue", share=1), Column("state"), Column("tries", is_right=True)]
    columns.append(Column("error", share=4))
    return _or_none(table(columns, [_failure_row(one, is_wide) for one in visible], width), "no job has failed")


def _failure_row(one: FailureLine, is_wide: bool) -> list[Cell]:
    error = " ".join(one.error.partition("\n")[0].split())
    more = [Cell(one.queue), Cell(one.state.value, BAD), Cell(str(one.attempts))] if is_wide else []
    return [Cell(one.job), Cell(_span(one.seconds_ago)), Cell(one.kind), *more, Cell(error or "-")]


# How values look -----------------------------------------------------------------------------------------------


def _state_style(state: JobState, count: int) -> str:
    return BAD if count and state in (JobState.FAILED, JobState.DEAD) else ""


def _count(count: int, style: str = "") -> Cell:
    return Cell(f"{count:,}", style if count else CALM)


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def _span(seconds: float) -> str:
    """In tenths of a second at the finest: what changes with every look is not read."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 1 else span(int(seconds * SECOND))
