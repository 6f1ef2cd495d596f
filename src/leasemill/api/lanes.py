"""Lanes in a user's words: what `@app.job(lane=...)` may be, and the function of the arguments that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from leasemill.api.argument_keys import KeyOf, key_of
from leasemill.api.arguments import Arguments
from leasemill.errors import Invalid


@dataclass(frozen=True, slots=True)
class FixedLane:
    """One lane, with this key, for all jobs of a kind."""

    key: str


LaneRule: TypeAlias = str | FixedLane | Callable[..., object]
"""In `@app.job`: the name of the parameter whose value is the lane's key, a function of parameters that computes it, or
`FixedLane(key)`, one lane for all jobs of the kind."""


def lane_of(rule: LaneRule | None, arguments: Arguments) -> KeyOf | None:
    """The lane's rule as a function of the arguments by name."""
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
