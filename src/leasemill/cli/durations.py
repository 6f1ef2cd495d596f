"""Durations on the command line: seconds, or the name of a preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click


class Seconds(click.ParamType[float]):
    """A number of seconds. click's own type would say that `5m` is not a float."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds: write for example 90 or 0.5", param, ctx)


PresetT = TypeVar("PresetT", bound=str)


def seconds_or(presets: Mapping[PresetT, float]) -> Callable[[str], float]:
    """A click type: a number of seconds, or one of the names, as in the code (`lease="heavy"`)."""

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
