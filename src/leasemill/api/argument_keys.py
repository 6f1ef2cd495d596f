"""Keys that are computed from a call's arguments: for lanes (`@app.job(lane=...)`), limits and unique jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from leasemill.api.arguments import Arguments
from leasemill.errors import Invalid

KeyOf: TypeAlias = Callable[[dict[str, Any]], object]
"""Computes the key of a call from its arguments by name."""


def key_of(by: str | Callable[..., object], check: Callable[[list[str]], object]) -> KeyOf:
    """The key is the value of the parameter that `by` names, or what the function `by` returns for its parameters.

    `check` is called with the names of these parameters, and refuses those that the handler does not have.
    """
    if isinstance(by, str):
        check([by])
        return lambda values: values[by]
    parameters = inspect.signature(by).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return lambda values: by(**values)
    names = [parameter.name for parameter in parameters]
    check(names)
    return lambda values: by(**{name: values[name] for name in names})


def key_text(what: str, value: object) -> str | None:
    """A key as text; None stays None."""
    if value is None or (isinstance(value, str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return key_text(what, value.value)
    if isinstance(value, int | UUID | Decimal | date) and not isinstance(value, bool):
        return str(value)
    raise Invalid(f"{what} is {value!r}, a {type(value).__name__}; use text, a number, a UUID or a date")


@dataclass(frozen=True, slots=True)
class FixedLane:
    """A single lane, with this key, for all jobs of a kind."""

    key: str


LaneRule: TypeAlias = str | FixedLane | Callable[..., object]
"""The `lane` of `@app.job`: the name of the parameter whose value is the lane's key, a function of parameters that
computes it, or `FixedLane(key)`, one lane for all jobs of the kind."""


def lane_of(rule: LaneRule | None, arguments: Arguments) -> KeyOf | None:
    """Return the function that computes a lane from the arguments by name."""
    match rule:
        case None:
            return None
        case FixedLane(key=key):
            return lambda _values: key
        case _:
            return key_of(rule, partial(_check_parameters, arguments, rule if isinstance(rule, str) else "NAME"))


def _check_parameters(arguments: Arguments, lane: str, names: list[str]) -> None:
    missing = [name for name in names if name not in arguments.names]
    if missing:
        raise Invalid(
            f"lane of {arguments.name}: {missing[0]!r} is not one of its parameters ({', '.join(arguments.names)}). In "
            "@app.job, lane names the parameter whose value is the key: write one of them, or "
            f"lane=FixedLane({lane!r}) for one lane for all its jobs"
        )
