"""Keys computed from a call's arguments: of lanes, of limits, and of unique jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

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
