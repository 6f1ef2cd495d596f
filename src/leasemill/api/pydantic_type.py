"""Values that Pydantic validates, as JSON and back: models, its dataclasses and types, and all that contains them.

Pydantic is the user's: it is used where the program has imported it, and never imported from here. The JSON has the
names of the fields, not their aliases, and no computed fields. It is validated strictly, where the call is made and in
the worker, by names and by aliases.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leasemill.api.round_trip import difference, field_names, non_finite
from leasemill.api.type_errors import Unfit, Unresolved
from leasemill.errors import Invalid

_NEEDED: Final = (2, 11)

_encode = msgspec.json.Encoder(order="deterministic").encode


def pydantic_module() -> Any:
    """Pydantic, if the program has imported it."""
    return sys.modules.get("pydantic")


class PydanticType:
    """One declared type, by a `pydantic.TypeAdapter`."""

    accepts_anything = False

    def __init__(self, what: str, annotation: Any) -> None:
        """`what` is named in errors: "parameter 'order' of charge"."""
        pydantic = pydantic_module()
        version = str(pydantic.VERSION)
        if tuple(int(part) for part in version.split(".")[:2]) < _NEEDED:
            raise Invalid(f"{what} needs Pydantic {'.'.join(map(str, _NEEDED))} or newer, and {version} is installed")
        self._invalid: type[ValueError] = pydantic.ValidationError
        try:
            self._adapter = pydantic.TypeAdapter(annotation)
            self._has_sets = _mentions_sets(self._adapter)
        except NameError as error:
            raise Unresolved(f"{what} has a field whose annotation cannot be resolved: {error.name}") from None
        except pydantic.errors.PydanticUserError as error:
            if error.code == "class-not-fully-defined":
                raise Unresolved(
                    f"{what} has a field whose annotation cannot be resolved: define what its models name, and call "
                    f"their model_rebuild() ({_first_line(error).partition(';')[0]})"
                ) from None
            raise Invalid(f"{what} cannot be carried as JSON: {_first_line(error)}") from None

    def encode(self, value: object) -> tuple[bytes, Any]:
        """The JSON, in one spelling for equal values, and the value as it arrives; raises Unfit."""
        jsonable = self._dump(value)
        arrived = self._arrived(value, _content(jsonable))
        if arrived != value:  # given in its JSON form, perhaps in another spelling
            value = arrived
            jsonable = self._dump(value)
            arrived = self._arrived(value, _content(jsonable))
        return _encode(_with_sorted_sets(jsonable, value) if self._has_sets else jsonable), arrived

    def decode(self, content: bytes) -> Any:
        """The value of a JSON text; raises Unfit."""
        try:
            return self._adapter.validate_json(content, strict=True, by_name=True)
        except self._invalid as error:
            raise _unfit(error) from None

    def fits_none(self) -> bool:
        try:
            return self.decode(b"null") is None
        except Unfit:
            return False

    def _dump(self, value: object) -> Any:
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings=False)
        except UnicodeDecodeError:
            raise Unfit(
                "", "bytes that are not UTF-8; set ser_json_bytes and val_json_bytes to 'base64' in the model's config"
            ) from None
        except ValueError as error:  # a serializer of the user's, or a value that JSON does not have
            raise Unfit("", _first_line(error)) from None

    def _arrived(self, value: object, content: bytes) -> Any:
        try:
            arrived = self.decode(content)
        except Unfit as error:
            note = "" if field_names(value) is None else " (in the JSON that it is stored as)"
            raise Unfit(*(non_finite(value) or (error.at, f"{error.text}{note}"))) from None
        changed = difference(value, arrived)
        if changed is not None:
            raise Unfit(*changed)
        return arrived


def _content(jsonable: Any) -> bytes:
    try:
        return _encode(jsonable)
    except ValueError as error:  # text that has no UTF-8, such as half a surrogate pair
        raise Unfit("", _first_line(error)) from None


def _unfit(error: Any) -> Unfit:
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    at = ""
    for part in first["loc"]:
        at += f"[{part}]" if isinstance(part, int) else f".{part}"
    more = f" (and {len(others)} more)" if others else ""
    return Unfit(at.removeprefix("."), f"{first['msg']}{more}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _mentions_sets(adapter: Any) -> bool:
    """A set has no order, so its items are sorted, or equal sets would be different content."""
    try:
        return "uniqueItems" in repr(adapter.json_schema(mode="validation"))
    except sys.modules["pydantic"].errors.PydanticInvalidForJsonSchema:
        return True


def _with_sorted_sets(jsonable: Any, value: object) -> Any:
    """The JSON-able form of a value, made of that very value, with the items of its sets in one order."""
    names = field_names(value)
    if getattr(type(value), "__pydantic_root_model__", False):
        return _with_sorted_sets(jsonable, getattr(value, "root", None))
    if names is not None and isinstance(jsonable, dict):
        return {key: _with_sorted_sets(item, getattr(value, key, None)) for key, item in jsonable.items()}
    if isinstance(value, Mapping) and isinstance(jsonable, dict) and len(value) == len(jsonable):
        pairs = zip(jsonable.items(), value.values(), strict=True)
        return {key: _with_sorted_sets(item, inner) for (key, item), inner in pairs}
    if isinstance(value, set | frozenset) and isinstance(jsonable, list):
        return sorted(jsonable, key=_encode)
    if isinstance(value, list | tuple) and isinstance(jsonable, list) and len(value) == len(jsonable):
        return [_with_sorted_sets(item, inner) for item, inner in zip(jsonable, value, strict=True)]
    return jsonable
