"""Sizes on the command line: a number and a unit."""

from __future__ import annotations

import re
from typing import Final

import click

UNITS: Final = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


class Size(int):
    """Bytes, written so that it can be read again."""

    def __str__(self) -> str:
        return f"{int(self)}B"


def as_size(value: str) -> Size:
    """A click type: `500MB`, `2GiB`. A bare number is refused: nobody means 500 bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value.strip().lower())
    if match is None or match[2] not in UNITS or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a size: write a number and a unit, for example 500MB or 2GiB")
    return Size(float(match[1]) * UNITS[match[2]])
