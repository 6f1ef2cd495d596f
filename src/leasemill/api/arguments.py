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
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Final

import msgspec

from leasemill.api.json_types import (
    ENCODING_ERRORS,
    JsonType,
    PlainType,
    PydanticType,
    Unfit,
    Unresolved,
    argument_sentence,
    encode_json,
    in_our_words,
    json_type,
)
from leasemill.api.round_trip import difference, non_finite, non_string_key
from leasemill.errors import Invalid
from leasemill.kernel.bounds import PAYLOAD_BYTES


class _Previous:
    """The result of the job before, in a chain."""

    def __repr__(self) -> str:
        return "PREVIOUS"


PREVIOUS: Final[Any] = _Previous()
"""Stands, as an argument of a call in a chain, for the result of the job before it."""

NO_ARGUMENTS: Final = b"{}"
NO_KEYWORDS: Final[dict[str, Any]] = {}
"""The keywords of every call by position: it is unpacked, and never changed."""
CONTEXT_NAME: Final = "ctx"
OPTIONS: Final = {
    "delay": "delay=5",
    "countdown": "delay=5",
    "run_at": "run_at=...",
    "eta": "run_at=...",
    "priority": "priority=9",
    "job_id": 'job_id="..."',
    "task_id": 'job_id="..."',
    "queue": 'queue="..."',
    "lane": 'lane="..."',
    "retry": "retry=3",
    "lease": "lease=60",
    "timeout": "timeout=600",
    "job_timeout": "timeout=600",
    "headers": "headers={...}",
    "unique": 'unique="..."',
}
"""Keywords that are often passed to `enqueue` and are options, here or in other libraries, with how to write them."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """The parameters and the result of one handler. Annotations that name something defined later are resolved at first
    use."""

    def __init__(
        self, function: Callable[..., object], context_type: type, namespace: Mapping[str, Any] | None = None
    ) -> None:
        self.name = getattr(function, "__name__", repr(function))
        self._function = function
        self._context_type = context_type
        self._namespace = dict(namespace or {})
        self._signature = inspect.signature(function)
        _refuse_unfit(self.name, function, self._signature)
        with suppress(Unresolved):  # it may name what is defined later: resolved when the job is first used
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
        return codec.encode(given, codec.decoder), codec.with_defaults(given)

    def encode_without_previous(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], str]:
        """Encode a call in a chain without the argument that is PREVIOUS; also returns its name."""
        codec = self._codec
        given = codec.bind(args, kwargs)
        names = [name for name, value in given.items() if value is PREVIOUS]
        if len(names) > 1:
            raise Invalid(f"{self.name}: PREVIOUS is passed for {_listed(tuple(names))}; use it for one argument only")
        name = names[0]
        del given[name]
        payload = codec.encode(given, codec.decoder_without(name))
        return payload, {one: codec.value(one, given) for one in codec.names if one != name}, name

    def check_takes_result_of(self, before: Arguments, name: str) -> None:
        """Refuse PREVIOUS behind a job that is declared to return nothing, unless None fits."""
        if before._codec.returns_nothing and not self._codec.types[name].fits_none():
            raise Invalid(
                f"{self.name}: argument {name!r} is PREVIOUS, and {before.name} returns nothing: let it return the "
                "value, or pass another"
            )

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arguments of the handler, by its annotations."""
        codec = self._codec
        if not codec.names and payload == NO_ARGUMENTS:
            return (), NO_KEYWORDS
        try:
            model = codec.decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(_call_sentence(self.name, error)) from None
        values = msgspec.structs.astuple(model)
        if codec.validated:
            values = codec.validate(values)
        if not codec.keyword_only:
            return values, NO_KEYWORDS
        count = len(values) - codec.keyword_only
        return values[:count], dict(zip(codec.names[count:], values[count:], strict=True))

    def encode_result(self, value: object, how: str = "returned") -> bytes | None:
        """The result as JSON, checked against the return annotation; None for None. `how`: how it was given."""
        codec = self._codec
        if value is None and codec.may_return_none:
            return None
        try:
            content, _ = codec.result.encode(value)
        except Unfit as error:
            what = "is not JSON-serializable" if codec.result.accepts_anything else "does not match its annotation"
            raise Invalid(f"{self.name} {how} a value that {what}: {error}") from None
        if len(content) > PAYLOAD_BYTES:
            raise Invalid(
                f"{self.name} {how} {len(content):,} bytes; the limit is {PAYLOAD_BYTES:,}: "
                "store it elsewhere and return a reference"
            )
        return content

    def decode_result(self, content: bytes | None) -> Any:
        """The result by the return annotation; raises `Unfit` where it does not fit."""
        return self._codec.result.decode(content or b"null")

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
            raise Unresolved(
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
        self._positional = self.names[: len(self.names) - self.keyword_only]
        required = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
        self._needs_keywords = any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in required)
        self._required = len(required)
        self._defaults = {it.name: it.default for it in parameters if it.default is not inspect.Parameter.empty}
        self._texts = [(it.name, NoneType in _union(hints[it.name])) for it in parameters if _is_text(hints, it.name)]
        self.types = {one: json_type(f"parameter {one!r} of {name}", hints.get(one, Any)) for one in self.names}
        self.result = json_type(f"the result of {name}", hints.get("return", Any))
        self.validated = {one: it for one, it in self.types.items() if isinstance(it, PydanticType)}
        self._with_fields = [one for one, it in self.types.items() if isinstance(it, PlainType) and it.has_fields]
        self._defaults_encoded = {one: _encoded(default, self.types[one]) for one, default in self._defaults.items()}
        self._fields = [_field(parameter, self.types[parameter.name]) for parameter in parameters]
        self.model = msgspec.defstruct(f"{name}_arguments", self._fields, forbid_unknown_fields=True)
        self.decoder = msgspec.json.Decoder(self.model)
        self.may_return_none = self.result.fits_none()
        self.returns_nothing = hints.get("return", Any) is NoneType

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args and kwargs.keys() == self._name_set:
            return {name: kwargs[name] for name in self.names}
        if not kwargs and not self._needs_keywords and self._required <= len(args) <= len(self._positional):
            return dict(zip(self._positional, args, strict=False))
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in self._name_set]
            why = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else error
            option = OPTIONS.get(unknown[0]) if unknown else None
            hint = "" if option is None else f"; to set it for one job write {self.name}.options({option}).enqueue(...)"
            raise Invalid(f"{self.name}: {why}; it takes {_listed(self.names)}{hint}") from None
        return dict(bound.arguments)

    def encode(self, given: dict[str, Any], decoder: msgspec.json.Decoder[Any]) -> bytes:
        """The JSON of a call. What is given in its JSON form is replaced by what arrives."""
        for name, may_be_none in self._texts:
            # Much becomes a JSON string (dates, UUIDs, numbers in Decimal); a parameter of type str accepts only a str.
            value = given.get(name, "")
            if not isinstance(value, str) and not (may_be_none and value is None):
                raise Invalid(argument_sentence(self.name, name, "", f"Expected `str`, got `{type(value).__name__}`"))
        try:
            sent = self._sent(given) if self._defaults or self.validated else given
            payload = encode_json(sent) if sent else NO_ARGUMENTS
            arrived = decoder.decode(payload)
        except Invalid:
            raise
        except ENCODING_ERRORS as error:
            raise Invalid(self._why_not(given, error)) from None
        for name in self._with_fields:
            if name in given:
                value = getattr(arrived, name)
                changed = difference(given[name], value)
                if changed is not None:
                    raise Invalid(argument_sentence(self.name, name, *changed))
                given[name] = value
        return payload

    def _sent(self, given: dict[str, Any]) -> dict[str, Any]:
        """E7: arguments that equal their default are left out.

        Compared as JSON, as it would arrive: 1 is not True, and one list equals another with the same items.
        """
        sent: dict[str, Any] = {}
        for name, value in given.items():
            if name in self._defaults and value is self._defaults[name]:
                continue
            if name in self.validated:
                encoded, given[name] = self._validated(name, value)
            elif name in self._defaults:
                encoded = encode_json(value)
            else:
                sent[name] = value
                continue
            if encoded != self._defaults_encoded.get(name):
                sent[name] = msgspec.Raw(encoded)
        return sent

    def _validated(self, name: str, value: object) -> tuple[bytes, Any]:
        try:
            return self.validated[name].encode(value)
        except Unfit as error:
            raise Invalid(argument_sentence(self.name, name, error.at, error.text)) from None

    def _why_not(self, given: dict[str, Any], error: Exception) -> str:
        for name, value in given.items():
            found = non_finite(value) or non_string_key(value)
            if found is not None:
                return argument_sentence(self.name, name, *found)
            if name not in self.validated and isinstance(error, TypeError) and not _is_json(value):
                hint = "; annotate the parameter with its type" if self.types[name].accepts_anything else ""
                return argument_sentence(self.name, name, "", f"{error}{hint}")
        return _call_sentence(self.name, error)

    def validate(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with those that Pydantic validates; a default is there already."""
        arrived = list(values)
        for index, name in enumerate(self.names):
            value = arrived[index]
            if name in self.validated and isinstance(value, msgspec.Raw):
                try:
                    arrived[index] = self.validated[name].decode(bytes(value))
                except Unfit as error:
                    raise Invalid(argument_sentence(self.name, name, error.at, error.text)) from None
        return tuple(arrived)

    def with_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Every argument by name, in the parameters' order."""
        if len(given) == len(self.names):
            return given
        return {name: self.value(name, given) for name in self.names}

    def value(self, name: str, given: dict[str, Any]) -> Any:
        return given[name] if name in given else self._defaults[name]

    def decoder_without(self, name: str) -> msgspec.json.Decoder[Any]:
        """Return a decoder of all arguments but this one."""
        fields = [one for one in self._fields if one[0] != name]
        # Those with a default need not come last.
        model = msgspec.defstruct(f"{self.name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        return msgspec.json.Decoder(model)


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
    hint = typing.get_origin(hint) or hint  # Context[State]
    return isinstance(hint, type) and issubclass(hint, context_type)


def _union(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)


def _is_text(hints: dict[str, Any], name: str) -> bool:
    return set(_union(hints.get(name))) - {NoneType} == {str}


def _field(parameter: inspect.Parameter, declared: JsonType) -> tuple[str, Any] | tuple[str, Any, Any]:
    annotation = declared.annotation if isinstance(declared, PlainType) else msgspec.Raw
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name, annotation
    if default is None or isinstance(default, str | int | float | bool | bytes):
        return parameter.name, annotation, default
    return parameter.name, annotation, msgspec.field(default_factory=lambda: deepcopy(default))


def _encoded(default: object, declared: JsonType) -> bytes | None:
    """A default as JSON; None if it does not survive the round trip (NaN, or a type that JSON cannot carry)."""
    try:
        encoded, arrived = declared.encode(default)
    except Unfit:
        return None
    return encoded if arrived == default else None


def _is_json(value: object) -> bool:
    try:
        encode_json(value)
    except ENCODING_ERRORS:
        return False
    return True


def _call_sentence(name: str, error: Exception) -> str:
    """msgspec's sentence with the parameter's name in front: "charge: argument 'cents': Expected `int`, got `str`"."""
    text, _, path = str(error).partition(" - at `$.")
    if not path:
        return f"{name}: {in_our_words(text, 'argument')}"
    parameter, _, rest = path.rstrip("`").partition(".")
    parameter, bracket, more = parameter.partition("[")
    return argument_sentence(name, parameter, (bracket + more + "." + rest).strip("."), in_our_words(text))


def _listed(names: tuple[str, ...]) -> str:
    return "no arguments" if not names else f"({', '.join(names)})"
