"""How commands print: tables and sentences for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from leasemill.kernel.model import NEVER, SECOND

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 24 * HOUR_S


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; nothing is cut off, so that it can be piped on."""
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def instant(us: int | None) -> str:
    if us is None:
        return "-"
    if us == NEVER:
        return "never"
    return datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def span(us: int | None) -> str:
    """A duration as people say it."""
    if us is None:
        return "-"
    if us >= NEVER:
        return "never"
    seconds = us / SECOND
    if seconds < 1:
        return f"{us / 1000:.1f} ms"
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.1f} min"
    if seconds < DAY_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / DAY_S:.1f} d"
