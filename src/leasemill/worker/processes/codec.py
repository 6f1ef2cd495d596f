"""Commands, answers, reports and errors as bytes: the name of the class, and its fields.

The classes are the kernel's and this package's own, named in a table: what arrives makes nothing else.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, msgpack

from leasemill import errors
from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import Action, Job, WorkerOrder
from leasemill.kernel.schedule import Schedule
from leasemill.worker.processes.messages import Packed, StoreAnswered

PLAIN: Final = ""
"""The class name that stands for None, a number or a text."""
STRUCTS: Final[dict[str, type[Struct]]] = {
    one.__name__: one
    for one in (*vars(c).values(), Action, Job, Schedule, WorkerOrder)
    if isinstance(one, type) and issubclass(one, Struct)
}
ERRORS: Final[dict[str, type[LeasemillError]]] = {
    name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, LeasemillError)
}

_decoders: Final[dict[str, msgpack.Decoder[Any]]] = {}


def pack(value: object) -> Packed:
    name = type(value).__name__
    return (name if name in STRUCTS else PLAIN), msgpack.encode(value)


def unpack(packed: Packed) -> Any:
    name, fields = packed
    if name == PLAIN:
        return msgpack.decode(fields)
    decoder = _decoders.get(name)
    if decoder is None:
        decoder = _decoders[name] = msgpack.Decoder(STRUCTS[name])
    return decoder.decode(fields)


def answered(request: int, answer: object) -> StoreAnswered:
    """Commands on many items return a list."""
    if isinstance(answer, list):
        return StoreAnswered(request, [pack(item) for item in answer], is_list=True)
    return StoreAnswered(request, [pack(answer)], is_list=False)


def answer_of(message: StoreAnswered) -> Any:
    items = [unpack(item) for item in message.items]
    return items if message.is_list else items[0]


def pack_error(error: Exception) -> Packed:
    """An error of the store. What is not one of ours is a fault, and arrives as such."""
    name = type(error).__name__
    if name not in ERRORS:
        return PLAIN, msgpack.encode(f"{name}: {error}")
    return name, msgpack.encode((str(error), vars(error)), enc_hook=str)


def unpack_error(packed: Packed) -> Exception:
    name, content = packed
    if name == PLAIN:
        return RuntimeError(f"the worker's process could not carry out a command: {msgpack.decode(content)}")
    text, fields = msgpack.decode(content)
    kind = ERRORS[name]
    error = kind.__new__(kind)
    error.args = (text,)
    vars(error).update(fields)
    return error
