"""Lanes in a user's words: what `@app.job(lane=...)` may be, and the function of the arguments that it becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from leasemill.api.arguments import Arguments
from leasemill.errors import Invalid


@dataclass(frozen=True, slots=True)
class FixedLane:
    """One lane for every job of a kind, by its name."""

    key: str


LaneRule: TypeAlias = str | FixedLane | Callable[..., object]
"""In `@app.job`: the name of the parameter whose value is the lane's key, a function of parameters that computes it, or
`FixedLane(key)`, one lane for all jobs of the kind."""

LaneOf: TypeAlias = Callable[[dict[str, Any]], object]
"""The lane's key, computed from the arguments by name."""


def lane_of(rule: LaneRule | None, arguments: Arguments) -> LaneOf | None:
    """The lane's rule as a function of the arguments by name."""
    match rule:
        case None:
            return None
        case FixedLane(key=key):
            return lambda _values: key
        case str():
            _check_parameters(rule, [rule], arguments)
            return lambda values: values[rule]
        case _:
            return _lane_function(rule, arguments)


def _lane_function(function: Callable[..., object], arguments: Arguments) -> LaneOf:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return lambda values: function(**values)
    names = [parameter.name for parameter in parameters]
    _check_parameters("the function", names, arguments)
    return lambda values: function(**{name: values[name] for name in names})


def _check_parameters(lane: str, names: list[str], arguments: Arguments) -> None:
    missing = [name for name in names if name not in arguments.names]
    if missing:
        raise Invalid(
            f"lane of {arguments.name}: {missing[0]!r} is not one of its parameters ({', '.join(arguments.names)}). In "
            "@app.job, lane names the parameter whose value is the key: write one of them, or "
            f"lane=FixedLane({lane!r}) for one lane for all its jobs"
        )
