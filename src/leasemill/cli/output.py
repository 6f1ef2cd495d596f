"""How commands print: tables and sentences for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from leasemill.times import instant, span

__all__ = ["instant", "json_option", "print_json", "print_table", "span"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; nothing is cut off, so that it can be piped on."""
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
