"""The kernel's types as they are written in JSON: objects with names where the kernel has arrays, and JSON in JSON.

A payload, a result and a worker's record are JSON already, so they are embedded as they are, as in `{"payload": {"to":
"ann"}}`. A field that may be missing and is JSON itself is left out, for `null` is a value. Of alternatives, each says
which it is in `outcome`. Requests refuse fields they do not know; answers may get more.

Made once, from the types; nothing here knows a single command.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Raw, Struct, UnsetType, defstruct
from msgspec import field as struct_field
from msgspec.structs import fields as fields_of

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.wire.bounds import WAIT, bound_of

Convert = Callable[[Any], Any]

OUTCOME: Final = "outcome"
UNDRAWN_JITTER: Final = -1.0

NOT_SENT: Final = {(c.Enqueue, "are_new")}
"""A call that is sent again after a lost reply is a repeat."""

ADDED: Final[dict[type[Struct], tuple[str, Any, Any]]] = {c.Claim: ("wait_s", Annotated[float, WAIT], 0.0)}
"""Fields for the server, not for the command."""

DRAWN: Final[dict[tuple[type[Struct], str], Any]] = {
    (JobSpec, "id"): "",
    (c.Claim, "tokens"): (),
    (c.NackReport, "jitter"): UNDRAWN_JITTER,
}
"""Fields that a request may leave out, because the server draws them. The value is the placeholder until then."""


class Shape(NamedTuple):
    """The type in JSON, and the conversions to it and from it; None: no conversion is needed."""

    type: Any
    to_wire: Convert | None = None
    from_wire: Convert | None = None


class Shapes:
    """The shapes of one direction: of requests, or of answers."""

    def __init__(self, *, are_requests: bool, tagged: frozenset[type[Struct]] = frozenset()) -> None:
        self._are_requests = are_requests
        self._tagged = tagged
        self._structs: dict[type[Struct], Shape] = {}

    def of(self, kind: Any) -> Shape:
        """The shape of any type that a command or an answer has in it."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is bytes:
            return Shape(Raw, Raw, bytes)
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in self._structs:
                self._structs[kind] = self._struct(kind)
            return self._structs[kind]
        if origin in {Union, types.UnionType}:
            return self._union(arguments)
        if origin in {list, Sequence}:
            return _items(self.of(arguments[0]), list)
        if origin is tuple and arguments[-1] is Ellipsis:
            return _items(self.of(arguments[0]), tuple)
        if origin in {dict, Mapping}:
            return _values(arguments[0], self.of(arguments[1]))
        return Shape(kind)

    def _union(self, members: tuple[Any, ...]) -> Shape:
        present = [member for member in members if member is not types.NoneType]
        if bytes in present:
            return Shape(Raw | UnsetType, _raw_or_unset, _bytes_or_none)
        shapes = {get_origin(member) or member: self.of(member) for member in present}
        written: Any = Union.__getitem__(tuple(shape.type for shape in shapes.values()))
        if len(present) < len(members):
            written = written | None
        if all(shape.to_wire is None for shape in shapes.values()):
            return Shape(written)
        to_wire = {kind: shape.to_wire for kind, shape in shapes.items()}
        from_wire = {get_origin(shape.type) or shape.type: shape.from_wire for shape in shapes.values()}
        return Shape(written, _dispatched(to_wire), _dispatched(from_wire))

    def _struct(self, kind: type[Struct]) -> Shape:
        hints = get_type_hints(kind)
        fields = [one for one in fields_of(kind) if (kind, one.name) not in NOT_SENT]
        shapes = [self.of(hints[one.name]) for one in fields]
        required: list[Any] = []
        optional: list[Any] = []
        for one, shape in zip(fields, shapes, strict=True):
            written = self._bounded(kind, one.name, hints[one.name], shape)
            default = self._default(kind, one, shape)
            if default is NODEFAULT:
                required.append((one.name, written))
            else:
                optional.append((one.name, written, default))
        added = [ADDED[kind]] if self._are_requests and kind in ADDED else []
        tag = snake_case(kind.__name__) if kind in self._tagged else None
        written = defstruct(
            kind.__name__,
            [*required, *optional, *added],
            namespace={"__doc__": kind.__doc__},
            tag_field=OUTCOME if tag else None,
            tag=tag,
            omit_defaults=self._are_requests,
            forbid_unknown_fields=self._are_requests,
        )
        by_name = {one.name: shape for one, shape in zip(fields, shapes, strict=True)}
        written_names = [one[0] for one in (*required, *optional)]
        back = [self._from_wire(kind, name, shape) for name, shape in by_name.items()]
        return Shape(
            written,
            _structs(written, written_names, [by_name[name].to_wire for name in written_names]),
            _structs(kind, list(by_name), back),
        )

    def _from_wire(self, kind: type[Struct], name: str, shape: Shape) -> Convert | None:
        placeholder = DRAWN.get((kind, name))
        return _drawn(placeholder) if self._are_requests and isinstance(placeholder, float) else shape.from_wire

    def _bounded(self, kind: type[Struct], name: str, hint: Any, shape: Shape) -> Any:
        if not self._are_requests:
            return shape.type
        present = [one for one in get_args(hint) if one is not types.NoneType] if _is_optional(hint) else [hint]
        bound = bound_of(kind, name, present[0])
        if isinstance(DRAWN.get((kind, name)), float):
            return Annotated[float, bound] | UnsetType
        if bound is None or bytes in present:
            return shape.type
        if _is_optional(hint):
            inner = self.of(present[0]).type
            return Annotated[inner, bound] | None
        return Annotated[shape.type, bound]

    def _default(self, kind: type[Struct], one: Any, shape: Shape) -> Any:
        drawn = DRAWN.get((kind, one.name), NODEFAULT) if self._are_requests else NODEFAULT
        if drawn is not NODEFAULT:
            return UNSET if isinstance(drawn, float) else drawn
        if shape.to_wire is _raw_or_unset:
            return UNSET
        if one.default_factory is not NODEFAULT:
            return struct_field(default_factory=one.default_factory)
        if one.default is NODEFAULT:
            return NODEFAULT
        if shape.to_wire is Raw:
            return struct_field(default_factory=partial(Raw, one.default))  # a schema cannot show it
        return one.default if shape.to_wire is None or one.default in {None, ()} else shape.to_wire(one.default)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def alternatives(kind: Any) -> set[type[Struct]]:
    """The structs that stand beside another in an answer of this type: they are distinguished by their `outcome`."""
    members = [member for member in get_args(kind) if member is not types.NoneType]
    found = {one for member in members for one in alternatives(member)}
    structs = [one for one in members if isinstance(one, type) and issubclass(one, Struct)]
    if get_origin(kind) in {Union, types.UnionType} and len(members) > 1:
        found |= set(structs)
    return found


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in {Union, types.UnionType} and types.NoneType in get_args(hint)


def _raw_or_unset(content: bytes | None) -> Any:
    return UNSET if content is None else Raw(content)


def _bytes_or_none(content: Any) -> bytes | None:
    return None if content is UNSET else bytes(content)


def _drawn(placeholder: Any) -> Convert:
    return lambda value: placeholder if value is UNSET else value


class _OrNone:
    """Converts what may be missing."""

    def __init__(self, present: Convert) -> None:
        self.present = present

    def __call__(self, value: Any) -> Any:
        return None if value is None else self.present(value)


def _dispatched(converters: dict[Any, Convert | None]) -> Convert:
    """Converts each kind of value in its own way, and None to itself."""
    if len(converters) == 1:
        return _OrNone(next(iter(converters.values())) or itself)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        converter = converters[type(value)]
        return value if converter is None else converter(value)

    return convert


def itself(value: Any) -> Any:
    return value


def _items(item: Shape, container: type) -> Shape:
    def converted(convert: Convert | None) -> Convert:
        if convert is None:
            return container
        if container is tuple:
            return lambda values: tuple([convert(value) for value in values])
        return lambda values: [convert(value) for value in values]

    written: Any = types.GenericAlias(container, item.type if container is list else (item.type, Ellipsis))
    return Shape(written, converted(item.to_wire), converted(item.from_wire))


def _values(key: Any, value: Shape) -> Shape:
    def converted(convert: Convert | None) -> Convert:
        if convert is None:
            return dict
        return lambda values: {name: convert(one) for name, one in values.items()}

    return Shape(types.GenericAlias(dict, (key, value.type)), converted(value.to_wire), converted(value.from_wire))


def _structs(made: type[Struct], names: Sequence[str], converters: Sequence[Convert | None]) -> Convert:
    """Makes a struct from the fields of another. As an expression of its own for each struct, as `namedtuple` does it:
    a loop over the fields takes twice as long, and a batch has hundreds of them."""
    known: dict[str, Any] = {"made": made}
    values = []
    for place, (name, convert) in enumerate(zip(names, converters, strict=True)):
        value = f"value.{name}"
        if isinstance(convert, _OrNone):
            known[f"convert_{place}"] = convert.present
            value = f"None if {value} is None else convert_{place}({value})"
        elif convert is not None:
            known[f"convert_{place}"] = convert
            value = f"convert_{place}({value})"
        values.append(value)
    made_from: Convert = eval(f"lambda value: made({', '.join(values)})", known)  # names of fields alone
    return made_from
