"""How commands print: tables and sentences for people, JSON for machines.

Much of what is printed was written by others: headers, errors, progress. What must never happen here: such a text that
begins a line of its own, or drives the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

import click
import msgspec

from leasemill.api.logs import escaped
from leasemill.operator.wording import instant

GAP: Final = "  "
ERROR_SHOWN: Final = 60
STYLES: Final = {
    "failed": "red",
    "dead": "red",
    "no heartbeat": "red",
    "paused": "yellow",
    "quiet": "yellow",
    "stopping": "yellow",
    "scheduled": "cyan",
    "leased": "green",
    "running": "green",
    "cancelled": "dim",
    "-": "dim",
}


def is_screen(stream: TextIO) -> bool:
    """Return whether the stream is a terminal on which something can be written over."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def emit(as_json: bool, document: object, *lines: str) -> None:
    """Print a result, as JSON or as lines."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            click.echo(escaped(line))


def emit_table(
    as_json: bool, documents: Iterable[object], columns: Sequence[str], rows: Iterable[Sequence[str]], more: str = ""
) -> None:
    """Print a list, as JSON or as a table. `more` says how to see the rest if it was cut off."""
    if as_json:
        print_json(list(documents))
        return
    print_table(columns, list(rows))
    if more:
        click.echo(more, err=True)


def print_fields(fields: Iterable[tuple[str, object]], width: int = 10) -> None:
    """Print one name and its value per line, with the values below each other."""
    for name, value in fields:
        click.echo(f"{name:<{width}} {escaped(str(value))}")


def print_lines(text: str) -> None:
    """Print a text of several lines, such as a traceback, indented: none of them looks like a line of ours."""
    for line in text.split("\n"):
        click.echo(f"  {escaped(line)}")


def json_instant(us: int | None) -> str | None:
    return None if us is None else instant(us)


def first_line(error: str | None) -> str:
    """Return the first line of an error, short enough for a table."""
    line = (error or "").partition("\n")[0]
    return line if len(line) <= ERROR_SHOWN else line[: ERROR_SHOWN - 3] + "..."


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be. Nothing is cut or wrapped, so that ids can be copied and piped on."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    if sys.stdout.isatty():
        _print_styled(columns, rows, sum(widths) + len(GAP) * len(widths))
        return
    for row in (columns, *rows):
        click.echo(GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_styled(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    from rich.console import Console  # slow to import, and only for terminals
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    console = Console()
    console.width = max(console.width, width)
    console.print(table, crop=False)
