"""The check that a worker receives the value that the caller gave.

A value that decodes is not always the value that was encoded: a validator changes it, a subclass loses its fields, an
excluded field is left out, text arrives where a UUID was given. Each of these is found where the call is made, and
named with its location in the value.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

Difference: TypeAlias = tuple[str, str]
"""The location in the value, as `items[2].price`, and what is wrong there."""

_JSON_SCALARS: Final = (str, int, float, bool, type(None))
_ARRAYS: Final = (list, tuple)
_SETS: Final = (set, frozenset)
_ABSENT: Final = object()
_SECRET: Final = (
    "a secret would be stored masked; pass a reference to it, or write a field_serializer that reveals it: "
    "everyone who can read the store can read payloads"
)
_EXCLUDED: Final = "the field is excluded from the JSON; leave it at its default, or do not exclude it"


def difference(given: object, arrived: object, at: str = "", *, in_json_form: bool = False) -> Difference | None:
    """Return the first difference between a value and the one that arrives; None: it arrives as it was given.

    A value may be given in its JSON form: a dict for an object with fields, text for a date. What is inside such a dict
    has been accepted by the type, which may change it. Tuples may arrive as lists.
    """
    if given is arrived or given == arrived:
        return None
    names = field_names(arrived)
    if names is not None:
        return _fields_differ(given, arrived, names, at)
    if isinstance(given, Mapping) and isinstance(arrived, Mapping):
        return _mappings_differ(given, arrived, at, in_json_form)
    if isinstance(given, _ARRAYS) and isinstance(arrived, _ARRAYS) and _has_length(arrived, len(given)):
        pairs = enumerate(zip(given, arrived, strict=False))
        inner = (difference(one, two, f"{at}[{index}]", in_json_form=in_json_form) for index, (one, two) in pairs)
        return _first(inner)
    if in_json_form and isinstance(given, (*_JSON_SCALARS, list, dict)):
        return None
    if isinstance(given, list) and isinstance(arrived, _SETS):
        return None  # the JSON form of a set
    if isinstance(given, float) and isinstance(arrived, float) and math.isnan(given) and math.isnan(arrived):
        return None
    if _is_json_form(given, arrived):
        return None
    return at, _how(given, arrived)


def field_names(value: object) -> tuple[str, ...] | None:
    """The fields of an object that has declared ones; None for all other values. Imports no library to find out."""
    kind = type(value)
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__pydantic_fields__") and hasattr(kind, "model_fields"):
        return tuple(kind.model_fields)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(field.name for field in kind.__attrs_attrs__ if field.eq)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.compare)
    return None


def non_finite(value: object, at: str = "") -> Difference | None:
    """The first number in a value that JSON does not have."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (at, _no_number(value))
    names = field_names(value)
    if names is not None:
        return _first(non_finite(getattr(value, name, None), _inner(at, name)) for name in names)
    if isinstance(value, Mapping):
        return _first(non_finite(item, f"{at}[{key!r}]") for key, item in value.items())
    if isinstance(value, (*_ARRAYS, *_SETS)):
        return _first(non_finite(item, f"{at}[{index}]") for index, item in enumerate(value))
    return None


def non_string_key(value: object, at: str = "") -> Difference | None:
    """The first dict in a value with a key that JSON objects cannot have; Pydantic converts those of its models."""
    if hasattr(type(value), "__pydantic_fields__"):
        return None
    names = field_names(value)
    if names is not None:
        return _first(non_string_key(getattr(value, name, None), _inner(at, name)) for name in names)
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            return at, f"a dict has a non-string key ({wrong!r}); JSON object keys must be strings"
        return _first(non_string_key(item, f"{at}[{key!r}]") for key, item in value.items())
    if isinstance(value, (*_ARRAYS, *_SETS)):
        return _first(non_string_key(item, f"{at}[{index}]") for index, item in enumerate(value))
    return None


def _first(found: Iterable[Difference | None]) -> Difference | None:
    return next((one for one in found if one is not None), None)


def _fields_differ(given: object, arrived: object, names: tuple[str, ...], at: str) -> Difference | None:
    if isinstance(given, Mapping):
        return _json_object_differs(given, arrived, names, at)
    if _family(given) is not _family(arrived):
        if isinstance(given, (*_JSON_SCALARS, list)):
            return None  # a form of its own, which the type accepted
        return at, _how(given, arrived)
    for name in names:
        mine = getattr(given, name, _ABSENT)
        found = difference(mine, getattr(arrived, name, _ABSENT), _inner(at, name))
        if found is not None:
            return (found[0], _EXCLUDED) if _is_excluded(given, name) else found
    extra = getattr(given, "model_extra", None) or {}
    return difference(extra, getattr(arrived, "model_extra", None) or {}, at)


def _json_object_differs(given: Mapping[Any, Any], arrived: Any, names: tuple[str, ...], at: str) -> Difference | None:
    """A dict for an object: its keys must be fields, or what was misspelled would be a default."""
    by_key = dict(zip(names, names, strict=True))
    others: set[object] = set()
    if hasattr(arrived, "__struct_encode_fields__"):
        by_key = dict(zip(arrived.__struct_encode_fields__, names, strict=True))
        others.add(arrived.__struct_config__.tag_field)
    elif hasattr(arrived, "model_fields_set"):
        others.update(given)  # Pydantic's models decide themselves what happens to other keys, and know aliases
    for key, value in given.items():
        if key in by_key:
            found = difference(value, getattr(arrived, by_key[key]), _inner(at, key), in_json_form=True)
            if found is not None:
                return found
        elif key not in others:
            return at, f"{type(arrived).__name__} has no field {key!r}; it has {', '.join(by_key)}"
    return None


def _mappings_differ(
    given: Mapping[Any, Any], arrived: Mapping[Any, Any], at: str, in_json_form: bool
) -> Difference | None:
    for key, value in given.items():
        if key not in arrived:
            if isinstance(key, str) and len(given) == len(arrived):
                continue  # the JSON form of a key
            return at, f"the key {reprlib.repr(key)} would not arrive; it is not declared, or not of the declared type"
        found = difference(value, arrived[key], f"{at}[{key!r}]", in_json_form=in_json_form)
        if found is not None:
            return found
    return None


def _has_length(arrived: list[Any] | tuple[Any, ...], length: int) -> bool:
    """A named tuple may be given without its last items, which have defaults."""
    return len(arrived) == length or (len(arrived) > length and hasattr(arrived, "_fields"))


def _is_json_form(given: object, arrived: object) -> bool:
    """Text for a date, a number for a Decimal; the other way round a date would arrive as text."""
    return type(given) in _JSON_SCALARS and not isinstance(arrived, (*_JSON_SCALARS, *_ARRAYS, *_SETS, Mapping))


def _is_excluded(given: object, name: str) -> bool:
    field = getattr(type(given), "model_fields", {}).get(name)
    return bool(getattr(field, "exclude", False))


def _family(value: object) -> object:
    """The class, of generic models the one without parameters."""
    generic = getattr(type(value), "__pydantic_generic_metadata__", None)
    return (generic and generic["origin"]) or type(value)


def _how(given: object, arrived: object) -> str:
    if hasattr(given, "get_secret_value"):
        return _SECRET
    if isinstance(given, float) and not math.isfinite(given):
        return _no_number(given)
    if type(given) is not type(arrived):
        return f"a value of type {type(given).__name__} would arrive as {type(arrived).__name__}"
    return f"{reprlib.repr(given)} would arrive as {reprlib.repr(arrived)}; a validator or serializer changes it"


def _no_number(value: float) -> str:
    return f"JSON has no {value}; pass None or text"


def _inner(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)
