"""Quantities on the command line, as click types: durations, sizes and rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND
from leasemill.operator.wording import jobs_per_second, limit_rate

PresetT = TypeVar("PresetT", bound=str)

SPAN_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
SPAN: Final = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)

SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


class Seconds(click.ParamType[float]):
    """A number of seconds. click's own type would say that `5m` is not a float."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds: write for example 90 or 0.5", param, ctx)


def seconds_or(presets: Mapping[PresetT, float]) -> Callable[[str], float]:
    """A number of seconds, or one of the names, as in the code (`lease="heavy"`)."""

    def as_seconds(value: str) -> float:
        named = [seconds for name, seconds in presets.items() if name == value]
        if named:
            return named[0]
        try:
            return float(value)
        except ValueError:
            names = ", ".join(f"{name} ({seconds:g} s)" for name, seconds in presets.items())
            raise click.BadParameter(f"{value!r} is neither a number of seconds nor one of {names}") from None

    return as_seconds


def metavar(presets: Mapping[PresetT, float]) -> str:
    return "|".join(["SECONDS", *presets])


def span_us(value: str) -> int:
    """Read `90d`, `12h` or `30m` as microseconds."""
    match = SPAN.fullmatch(value)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a time span: write for example 90d, 12h or 30m")
    return int(match[1]) * SPAN_UNITS_S[match[2]] * SECOND


class Size(int):
    """A number of bytes, written so that it can be read again."""

    def __str__(self) -> str:
        return f"{int(self)}B"


def as_size(value: str) -> Size:
    """Read `500MB` or `2GiB`. A bare number is refused: 500 bytes cannot be meant."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value.strip().lower())
    if match is None or match[2] not in SIZE_UNITS or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a size: write a number and a unit, for example 500MB or 2GiB")
    return Size(float(match[1]) * SIZE_UNITS[match[2]])


def as_rate(value: str) -> float:
    """Read `5/s` or `100/min` as jobs per second."""
    try:
        return jobs_per_second(value)
    except Invalid as error:
        raise click.BadParameter(str(error)) from None


def as_limit_rate(value: str) -> tuple[int, int]:
    """Read `50/s` or `3/10s` as a number of starts and a period in microseconds."""
    try:
        return limit_rate(value)
    except Invalid as error:
        raise click.BadParameter(str(error)) from None
