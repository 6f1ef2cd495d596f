"""The declared types of parameters and results, each with its encoder to JSON and its decoder.

msgspec encodes a type if it can. What it cannot encode is left to Pydantic, which belongs to the user: it is used where
the program has imported it, and never imported from here. Its JSON has the names of the fields, not their aliases, and
no computed fields; it is validated strictly, where the call is made and in the worker. A type that neither can encode
is refused when the job is declared, with what to write instead.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from leasemill.api.round_trip import difference, field_names, non_finite, non_string_key
from leasemill.errors import Invalid


class Unfit(ValueError):
    """A value does not fit its declared type."""

    def __init__(self, at: str, text: str) -> None:
        super().__init__(f"at {at}: {text}" if at else text)
        self.at = at
        """The location in the value, as `items[2].price`; empty for the value itself."""
        self.text = text


class Unresolved(Invalid):
    """An annotation names something that is not defined (yet)."""


_MISSING: Final = re.compile(r"^Object missing required field `(.*)`$")
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`$")


def in_our_words(text: str, what: str = "field") -> str:
    """Translate an error of msgspec for a reader who knows arguments and not msgspec."""
    return _UNKNOWN.sub(rf"unknown {what} '\1'", _MISSING.sub(rf"missing {what} '\1'", text))


def argument_sentence(name: str, parameter: str, at: str, text: str) -> str:
    return f"{name}: argument {parameter!r}{' at ' + at if at else ''}: {text}"


_OLDEST_PYDANTIC: Final = (2, 11)

_encode = msgspec.json.Encoder(order="deterministic").encode


def pydantic_module() -> Any:
    """Pydantic, if the program has imported it."""
    return sys.modules.get("pydantic")


class PydanticType:
    """A declared type that Pydantic encodes, with a `TypeAdapter`."""

    accepts_anything = False

    def __init__(self, what: str, annotation: Any) -> None:
        """`what` is named in errors: "parameter 'order' of charge"."""
        pydantic = pydantic_module()
        version = str(pydantic.VERSION)
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_PYDANTIC:
            raise Invalid(
                f"{what} needs Pydantic {'.'.join(map(str, _OLDEST_PYDANTIC))} or newer, and {version} is installed"
            )
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


ENCODING_ERRORS: Final = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)

encode_json = msgspec.json.Encoder(order="deterministic").encode

_MARKERS: Final = ("pydantic", "pydantic_core", "annotated_types")
"""Packages whose objects in `Annotated` are constraints that Pydantic checks."""

_WITH_FIELDS: Final = (
    msgspec.inspect.DataclassType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.StructType,
    msgspec.inspect.TypedDictType,
)


class PlainType:
    """A declared type that msgspec encodes."""

    def __init__(self, annotation: Any, info: msgspec.inspect.Type) -> None:
        self.annotation = annotation
        self.has_fields = any(isinstance(node, _WITH_FIELDS) for node in _nodes(info))
        """True if a value is compared with the one that arrives: objects are, plain values arrive as they are."""
        self.accepts_anything = isinstance(info, msgspec.inspect.AnyType)
        self._decoder = msgspec.json.Decoder(annotation)

    def encode(self, value: object) -> tuple[bytes, Any]:
        """Return the JSON, and the value as it arrives; raises Unfit."""
        try:
            content = encode_json(value)
            arrived = self._decoder.decode(content)
        except ENCODING_ERRORS as error:
            raise Unfit(*(non_finite(value) or non_string_key(value) or _location(error))) from None
        changed = difference(value, arrived) if self.has_fields else None
        if changed is not None:
            raise Unfit(*changed)
        return content, arrived

    def decode(self, content: bytes) -> Any:
        """The value of a JSON text; raises Unfit."""
        try:
            return self._decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unfit(*_location(error)) from None

    def fits_none(self) -> bool:
        try:
            return self._decoder.decode(b"null") is None
        except msgspec.ValidationError:
            return False


JsonType: TypeAlias = PlainType | PydanticType


def json_type(what: str, annotation: Any) -> JsonType:
    """Return the encoder for a type; `what` is named in refusals, such as "parameter 'order' of charge"."""
    try:
        info = msgspec.inspect.type_info(annotation)
    except (NameError, AttributeError) as error:
        raise Unresolved(f"{what} has a field whose annotation cannot be resolved: {error}") from None
    except (TypeError, ValueError) as error:
        return _by_pydantic(what, annotation, f"{what} cannot be carried as JSON: {error}; {_instead(error)}")
    unknown = next((node.cls for node in _nodes(info) if isinstance(node, msgspec.inspect.CustomType)), None)
    if unknown is not None:
        return _by_pydantic(
            what,
            annotation,
            f"{what} has the type {unknown.__name__}, which cannot be carried as JSON: use a dataclass, attrs, "
            "a msgspec.Struct, a Pydantic model, a TypedDict or plain values",
        )
    if any(map(_is_pydantic_dataclass, _nodes(info))) or _has_markers(annotation):
        return PydanticType(what, annotation)
    return PlainType(annotation, info)


def _by_pydantic(what: str, annotation: Any, refusal: str) -> PydanticType:
    if pydantic_module() is None:
        raise Invalid(refusal)
    try:
        return PydanticType(what, annotation)
    except Unresolved:
        raise
    except Invalid as error:
        reason = str(error).removeprefix(f"{what} cannot be carried as JSON: ").partition(". ")[0]
        raise Invalid(f"{refusal}. Pydantic cannot carry it either: {reason}") from None


def _instead(error: Exception) -> str:
    """Return what to write where msgspec refuses a type."""
    if "union" not in str(error).lower():
        return "write it with types that JSON has"
    return (
        "write a union whose members can be distinguished in JSON: classes that are each a msgspec.Struct with "
        "tag=True, or Pydantic models with a discriminator; or take one dataclass whose fields may be None"
    )


def _nodes(node: object) -> Iterator[object]:
    """Yield the types in an annotation, those of the fields of dataclasses included."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, tuple | list):
            waiting.extend(one)
        elif isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
            yield one
            waiting.extend(getattr(one, name) for name in one.__struct_fields__)


def _is_pydantic_dataclass(node: object) -> bool:
    return isinstance(node, msgspec.inspect.DataclassType) and hasattr(node.cls, "__pydantic_validator__")


def _has_markers(annotation: Any) -> bool:
    """Constraints of Pydantic in the annotation itself: `Annotated[int, Field(gt=0)]`, `list[PositiveInt]`."""
    if pydantic_module() is None:
        return False
    marks = getattr(annotation, "__metadata__", ())
    if any(type(mark).__module__.partition(".")[0] in _MARKERS for mark in marks):
        return True
    return any(_has_markers(inner) for inner in typing.get_args(annotation) if not isinstance(inner, str))


def _location(error: Exception) -> tuple[str, str]:
    """msgspec's sentence in two: "Expected `int`, got `str` - at `$.items[2].price`"."""
    text, _, path = str(error).partition(" - at `$")
    return path.rstrip("`").lstrip("."), in_our_words(text)
