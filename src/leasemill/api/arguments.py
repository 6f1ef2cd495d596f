"""A handler's signature as a contract: arguments to JSON and back, results to JSON and back.

What goes in is checked against the annotations by encoding it and decoding it again as the worker will, so that a
call which could not be carried out is refused where it is made. The JSON is an object of the arguments that differ from
their defaults, sorted by name: the same call is the same bytes (E2), and stays so when a version of the code adds an
optional parameter (E7). JSON only, never pickle.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Final
from uuid import UUID

import msgspec

from leasemill.errors import Invalid
from leasemill.kernel.bounds import PAYLOAD_BYTES


class _Previous:
    """The result of the job before, in a chain."""

    def __repr__(self) -> str:
        return "PREVIOUS"


PREVIOUS: Final[Any] = _Previous()
"""As an argument of a call in a chain: the result of the job before it."""

NO_ARGUMENTS: Final = b"{}"
CONTEXT_NAME: Final = "ctx"

_encode = msgspec.json.Encoder(order="deterministic").encode
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Unresolved(Invalid):
    """An annotation names something that is not defined (yet)."""


class Arguments:
    """What one handler takes and returns. Annotations that name something defined later are resolved at first use."""

    def __init__(
        self, function: Callable[..., object], context_type: type, namespace: Mapping[str, Any] | None = None
    ) -> None:
        self.name = getattr(function, "__name__", repr(function))
        self._function = function
        self._context_type = context_type
        self._namespace = dict(namespace or {})
        self._signature = inspect.signature(function)
        _refuse_unfit(self.name, function, self._signature)
        with suppress(_Unresolved):  # it may name what is defined later: resolved when the job is first used
            _ = self._codec

    @property
    def takes_context(self) -> bool:
        return self._codec.takes_context

    @property
    def may_return_none(self) -> bool:
        return self._codec.may_return_none

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters a caller gives, in order."""
        return self._codec.names

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """The call as JSON, without what equals its default, and its arguments by name with defaults filled in."""
        codec = self._codec
        given = codec.bind(args, kwargs)
        codec.check_texts(given)
        try:
            sent = codec.without_defaults(given)
            payload = _encode(sent) if sent else NO_ARGUMENTS
            codec.decoder.decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise Invalid(_call_sentence(self.name, error)) from None
        return payload, codec.with_defaults(given)

    def encode_without_previous(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], str]:
        """As `encode`, for a call in a chain: without the argument that is PREVIOUS, which is named."""
        codec = self._codec
        given = codec.bind(args, kwargs)
        names = [name for name, value in given.items() if value is PREVIOUS]
        if len(names) > 1:
            raise Invalid(f"{self.name}: {_listed(tuple(names))} are PREVIOUS; pass the result as one of them")
        name = names[0]
        del given[name]
        codec.check_texts(given)
        try:
            sent = codec.without_defaults(given)
            payload = _encode(sent) if sent else NO_ARGUMENTS
            codec.decoder_without(name).decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise Invalid(_call_sentence(self.name, error)) from None
        return payload, {one: codec.value(one, given) for one in codec.names if one != name}, name

    def check_takes_result_of(self, before: Arguments, name: str) -> None:
        """Refuse PREVIOUS behind a job that is declared to return nothing, unless None fits."""
        if before._codec.returns_nothing and not _fits_none(self._codec.decoder_of(name)):
            raise Invalid(
                f"{self.name}: argument {name!r} is PREVIOUS, and {before.name} returns nothing: let it return the "
                "value, or pass another"
            )

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arguments of the handler, by its annotations."""
        codec = self._codec
        if not codec.names and payload == NO_ARGUMENTS:
            return (), {}
        try:
            model = codec.decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(_call_sentence(self.name, error)) from None
        values = msgspec.structs.astuple(model)
        if not codec.keyword_only:
            return values, {}
        count = len(values) - codec.keyword_only
        return values[:count], dict(zip(codec.names[count:], values[count:], strict=True))

    def encode_result(self, value: object) -> bytes | None:
        """The result as JSON, checked against the return annotation; None for None."""
        codec = self._codec
        if value is None and codec.may_return_none:
            return None
        try:
            content = _encode(value)
            codec.result_decoder.decode(content)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise Invalid(
                f"{self.name} returned a value that does not match its annotation: {_sentence(error)}"
            ) from None
        if len(content) > PAYLOAD_BYTES:
            raise Invalid(
                f"{self.name} returned {len(content):,} bytes; the limit is {PAYLOAD_BYTES:,}: "
                "store it elsewhere and return a reference"
            )
        return content

    def decode_result(self, content: bytes | None) -> Any:
        """The result by the return annotation; raises `msgspec.ValidationError` where it does not fit."""
        return self._codec.result_decoder.decode(content or b"null")

    @cached_property
    def _codec(self) -> _Codec:
        return _Codec(self.name, self._signature, self._hints(), self._context_type)

    def check(self) -> None:
        """Raise Invalid if the annotations cannot be resolved, now that everything they may name is defined."""
        _ = self._codec

    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, localns=self._namespace, include_extras=True)
        except (NameError, AttributeError) as error:
            missing = error.name or "the missing name"
            raise _Unresolved(
                f"{self._culprit(missing)} cannot be resolved: {error}; define {missing} in the handler's module, or "
                "import it there outside `if TYPE_CHECKING:`"
            ) from None
        except (SyntaxError, TypeError, ValueError) as error:
            raise Invalid(f"an annotation of {self.name} is not a type: {error}") from None

    def _culprit(self, missing: str) -> str:
        names = [name for name, it in inspect.get_annotations(self._function).items() if missing in str(it)]
        if not names:
            return f"an annotation of {self.name}"
        what = "the result" if names[0] == "return" else f"parameter {names[0]!r}"
        return f"the annotation of {what} of {self.name}"


class _Codec:
    """Encodes and decodes by the resolved annotations."""

    def __init__(self, name: str, signature: inspect.Signature, hints: dict[str, Any], context_type: type) -> None:
        parameters = list(signature.parameters.values())
        self.name = name
        self.takes_context = bool(parameters) and _is_context(parameters[0], hints, context_type)
        if self.takes_context:
            parameters = parameters[1:]
        for parameter in parameters:
            if _is_context(parameter, hints, context_type):
                raise Invalid(f"{name} takes its Context as parameter {parameter.name!r}; make it the first parameter")
        self.names = tuple(parameter.name for parameter in parameters)
        self.keyword_only = sum(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
        self._signature = inspect.Signature(parameters)
        self._name_set = frozenset(self.names)
        self._defaults = {it.name: it.default for it in parameters if it.default is not inspect.Parameter.empty}
        self._texts = [(it.name, NoneType in _union(hints[it.name])) for it in parameters if _is_text(hints, it.name)]
        types = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
        self._defaults_encoded = {name: _encoded(default, types[name]) for name, default in self._defaults.items()}
        returned = hints.get("return", Any)
        for what, annotation in [*((f"parameter {it!r}", types[it]) for it in types), ("the result", returned)]:
            _refuse_unknown_types(name, what, annotation)
        self._fields = [_field(parameter, types[parameter.name]) for parameter in parameters]
        self.model = msgspec.defstruct(f"{name}_arguments", self._fields, forbid_unknown_fields=True)
        self.decoder = msgspec.json.Decoder(self.model)
        self.result_decoder = msgspec.json.Decoder(returned)
        self.may_return_none = _fits_none(self.result_decoder)
        self.returns_nothing = returned is NoneType

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args and kwargs.keys() == self._name_set:
            return {name: kwargs[name] for name in self.names}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{self.name}: {error}; it takes {_listed(self.names)}") from None
        return dict(bound.arguments)

    def without_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """E7: arguments that equal their default are left out.

        Compared as JSON, as it would arrive: 1 is not True, and one list equals another with the same items.
        """
        if not self._defaults:
            return given
        sent: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self._defaults:
                sent[name] = value
            elif value is not self._defaults[name]:
                encoded = _encode(value)
                if encoded != self._defaults_encoded[name]:
                    sent[name] = msgspec.Raw(encoded)
        return sent

    def with_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Every argument by name, in the parameters' order."""
        if len(given) == len(self.names):
            return given
        return {name: self.value(name, given) for name in self.names}

    def value(self, name: str, given: dict[str, Any]) -> Any:
        return given[name] if name in given else self._defaults[name]

    def decoder_without(self, name: str) -> msgspec.json.Decoder[Any]:
        """Of every argument but this one."""
        fields = [one for one in self._fields if one[0] != name]
        # Those with a default need not come last.
        model = msgspec.defstruct(f"{self.name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        return msgspec.json.Decoder(model)

    def decoder_of(self, name: str) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(next(one[1] for one in self._fields if one[0] == name))

    def check_texts(self, values: dict[str, Any]) -> None:
        """Much becomes a JSON string (dates, UUIDs, numbers in Decimal); a parameter of type str accepts only a str."""
        for name, may_be_none in self._texts:
            if name not in values:
                continue
            value = values[name]
            if not isinstance(value, str) and not (may_be_none and value is None):
                raise Invalid(f"{self.name}: argument {name!r}: Expected `str`, got `{type(value).__name__}`")


def lane_key(kind: str, value: object) -> str | None:
    """A lane's key from the value that names it; None: no lane."""
    return key_text(f"the lane of {kind}", value)


def key_text(what: str, value: object) -> str | None:
    """A key from a value; None stays None."""
    if value is None or (isinstance(value, str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return key_text(what, value.value)
    if isinstance(value, int | UUID | Decimal | date) and not isinstance(value, bool):
        return str(value)
    raise Invalid(f"{what} is {value!r}, a {type(value).__name__}; use text, a number, a UUID or a date")


def _refuse_unfit(name: str, function: Callable[..., object], signature: inspect.Signature) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(f"{name} is a generator; a handler must return its result, not yield")
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise Invalid(f"{name} takes *{parameter.name}; name each parameter, or take one list")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise Invalid(f"{name} takes **{parameter.name}; name each parameter, or take one dict")


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any], context_type: type) -> bool:
    if parameter.name not in hints:
        return parameter.name == CONTEXT_NAME and parameter.kind in _POSITIONAL
    hint = hints[parameter.name]
    return isinstance(hint, type) and issubclass(hint, context_type)


def _union(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)


def _is_text(hints: dict[str, Any], name: str) -> bool:
    return set(_union(hints.get(name))) - {NoneType} == {str}


def _field(parameter: inspect.Parameter, annotation: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name, annotation
    if default is None or isinstance(default, str | int | float | bool | bytes):
        return parameter.name, annotation, default
    return parameter.name, annotation, msgspec.field(default_factory=lambda: deepcopy(default))


def _encoded(default: object, annotation: Any) -> bytes | None:
    """A default as JSON; None if it does not survive the round trip (NaN, or a type that JSON cannot carry)."""
    try:
        encoded = _encode(default)
        return encoded if msgspec.json.decode(encoded, type=annotation) == default else None
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return None


def _fits_none(decoder: msgspec.json.Decoder[Any]) -> bool:
    try:
        return decoder.decode(b"null") is None
    except msgspec.ValidationError:
        return False


def _refuse_unknown_types(name: str, what: str, annotation: Any) -> None:
    try:
        info = msgspec.inspect.type_info(annotation)
    except (NameError, AttributeError) as error:
        raise _Unresolved(f"{what} of {name} has a field whose annotation cannot be resolved: {error}") from None
    except (TypeError, ValueError) as error:
        raise Invalid(f"{what} of {name} cannot be carried as JSON: {error}") from None
    unknown = _custom_types(info, set())
    if unknown:
        raise Invalid(
            f"{what} of {name} has the type {unknown}, which cannot be carried as JSON: "
            "use a dataclass, a msgspec.Struct, a TypedDict or plain values"
        )


def _custom_types(node: object, seen: set[int]) -> str | None:
    """The name of the first type in an annotation that msgspec cannot encode."""
    if id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        return node.cls.__name__
    if isinstance(node, tuple | list):
        children = list(node)
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        children = [getattr(node, name) for name in node.__struct_fields__]
    else:
        return None
    return next((found for child in children if (found := _custom_types(child, seen))), None)


def _call_sentence(name: str, error: Exception) -> str:
    """msgspec's sentence with the parameter's name in front: "charge: argument 'cents': Expected `int`, got `str`"."""
    text, _, path = str(error).partition(" - at `$.")
    if not path:
        return f"{name}: {_sentence(error)}"
    parameter, _, rest = path.rstrip("`").partition(".")
    parameter, bracket, more = parameter.partition("[")
    inside = (bracket + more + "." + rest).strip(".")
    return f"{name}: argument {parameter!r}{' at ' + inside if inside else ''}: {text}"


def _sentence(error: Exception) -> str:
    return str(error).replace(" - at `$`", "")


def _listed(names: tuple[str, ...]) -> str:
    return "no arguments" if not names else f"({', '.join(names)})"
