"""How values of a declared type are carried as JSON: by msgspec, or by Pydantic where msgspec cannot and a program
has it.

What neither can carry is refused when the job is declared, with what to write instead.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from leasemill.api.pydantic_type import PydanticType, pydantic_module
from leasemill.api.round_trip import difference, non_finite, non_string_key
from leasemill.api.type_errors import Unfit, Unresolved, in_our_words
from leasemill.errors import Invalid

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
    """One declared type that msgspec carries."""

    def __init__(self, annotation: Any, info: msgspec.inspect.Type) -> None:
        self.annotation = annotation
        self.has_fields = any(isinstance(node, _WITH_FIELDS) for node in _nodes(info))
        """Only objects are compared with what arrives; plain values arrive as they are."""
        self.accepts_anything = isinstance(info, msgspec.inspect.AnyType)
        self._decoder = msgspec.json.Decoder(annotation)

    def encode(self, value: object) -> tuple[bytes, Any]:
        """The JSON, and the value as it arrives; raises Unfit."""
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
    """How values of a type are carried; `what` is named in refusals, such as "parameter 'order' of charge"."""
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
    """What to write where msgspec refuses a type."""
    if "union" not in str(error).lower():
        return "write it with types that JSON has"
    return (
        "write a union whose members can be distinguished in JSON: classes that are each a msgspec.Struct with "
        "tag=True, or Pydantic models with a discriminator; or take one dataclass whose fields may be None"
    )


def _nodes(node: object) -> Iterator[object]:
    """The types in an annotation, fields of dataclasses and others included."""
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
