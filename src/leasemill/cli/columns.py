"""Tables that fit a terminal of any width: no line is wrapped, and what is cut has an ellipsis.

Unlike `output.print_table`, whose lines are as long as they need to be, for what is piped on or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP: Final = 2
ELLIPSIS: Final = "…"
HEADING: Final = "dim"
LEAST: Final = 8
"""Of a column that can be cut: what is shorter says nothing."""


class Column(NamedTuple):
    """`share` 0: as wide as its widest cell; else it is cut where room is short, in proportion to the share."""

    title: str
    is_right: bool = False
    share: int = 0
    keeps_end: bool = False
    """It is cut in the middle: of ids and of workers' names the end distinguishes them."""
    least: int = 0
    """So that a table does not move while its numbers change."""
    most: int | None = None


class Cell(NamedTuple):
    text: str
    style: str = ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """The heading and the rows, each one line of at most `width` cells; the last columns are left out if they are too
    many for it."""
    while len(columns) > 1 and not _fits(columns, rows, width):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    widths = _widths(columns, rows, width)
    heading = [Cell(column.title, "bold" if column is columns[0] else HEADING) for column in columns]
    return [_line(columns, widths, row, width) for row in (heading, *rows)]


def _fits(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    wanted = [_wanted(column, [row[index].text for row in rows]) for index, column in enumerate(columns)]
    least = [min(given, LEAST) if column.share else given for column, given in zip(columns, wanted, strict=True)]
    return sum(least) + GAP * (len(columns) - 1) <= width


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[int]:
    wanted = [_wanted(column, [row[index].text for row in rows]) for index, column in enumerate(columns)]
    left = width - GAP * (len(columns) - 1) - sum(wanted)
    flexible = [index for index, column in enumerate(columns) if column.share]
    if left >= 0 or not flexible:
        return wanted
    room = left + sum(wanted[index] for index in flexible)
    divided = _divided(columns, wanted, flexible, max(room, len(flexible)))
    return [divided.get(index, given) for index, given in enumerate(wanted)]


def _wanted(column: Column, texts: Sequence[str]) -> int:
    widest = max(column.least, *map(cell_len, (column.title, *texts)))
    return widest if column.most is None else min(widest, column.most)


def _divided(columns: Sequence[Column], wanted: Sequence[int], flexible: Sequence[int], room: int) -> dict[int, int]:
    """Room for the columns that can be cut: what a narrow one does not need, the others get."""
    given: dict[int, int] = {}
    waiting = list(flexible)
    while waiting:
        shares = sum(columns[index].share for index in waiting)
        narrow = [index for index in waiting if wanted[index] <= room * columns[index].share // shares]
        if not narrow:
            break
        for index in narrow:
            given[index] = wanted[index]
            room -= wanted[index]
            waiting.remove(index)
    for index in waiting:
        shares = sum(columns[other].share for other in waiting if other not in given)  # that of the last is the rest
        given[index] = max(1, room * columns[index].share // shares)
        room -= given[index]
    return given


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell], width: int) -> Text:
    line = Text(no_wrap=True, overflow="crop", end="")
    for column, cell_width, cell in zip(columns, widths, row, strict=True):
        text = shortened(cell.text, cell_width, keeps_end=column.keeps_end)
        padding = " " * (cell_width - cell_len(text))
        if line:
            line.append(" " * GAP)
        if column.is_right:
            line.append(padding)
        line.append(text, cell.style)
        if not column.is_right:
            line.append(padding)
    line.rstrip()
    if line.cell_len > width:
        line.truncate(width, overflow="ellipsis")
    return line


def shortened(text: str, width: int, *, keeps_end: bool = False) -> str:
    """Cut to a width in cells, with an ellipsis, and without what would move the cursor."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    if not keeps_end or width < 2 * GAP:
        return set_cell_size(text, max(0, width - 1)).rstrip() + ELLIPSIS
    end = (width - 1) * 2 // 3
    return set_cell_size(text, width - 1 - end) + ELLIPSIS + _last_cells(text, end)


def printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _last_cells(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[1:]
    return text
