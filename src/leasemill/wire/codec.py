"""Commands and answers as JSON, and back. Both ends use it, so what one writes the other reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec.json import Decoder, Encoder

from leasemill.kernel.command import Command
from leasemill.wire.routes import ROUTES, Route
from leasemill.wire.shapes import Convert, Shapes, alternatives, itself


class RouteCodec(NamedTuple):
    """How the command of one route and its answer are written and read."""

    request_type: Any
    answer_type: Any
    request_to_wire: Convert
    request_from_wire: Convert
    answer_to_wire: Convert
    answer_from_wire: Convert
    request_decoder: Decoder[Any]
    answer_decoder: Decoder[Any]


class Asked(NamedTuple):
    """A request as it was read; `wait_s`: how long it may be kept waiting."""

    command: Command[Any]
    wait_s: float


def answer_of(command: type[Command[Any]]) -> Any:
    """The type of a command's answer."""
    (base,) = [base for base in command.__orig_bases__ if get_args(base)]  # type: ignore[attr-defined]
    return get_args(base)[0]


def _codec(route: Route) -> RouteCodec:
    request, answer = REQUESTS.of(route.command), ANSWERS.of(answer_of(route.command))
    return RouteCodec(
        request.type,
        answer.type,
        request.to_wire or itself,
        request.from_wire or itself,
        answer.to_wire or itself,
        answer.from_wire or itself,
        Decoder(request.type),
        Decoder(answer.type),
    )


REQUESTS: Final = Shapes(are_requests=True)
ANSWERS: Final = Shapes(
    are_requests=False,
    tagged=frozenset(one for route in ROUTES for one in alternatives(answer_of(route.command))),
)
CODECS: Final = {route.name: _codec(route) for route in ROUTES}

_encode: Final = Encoder().encode


def encode_request(route: Route, command: Command[Any]) -> bytes:
    return _encode(CODECS[route.name].request_to_wire(command))


_ENQUEUE: Final = (b'{"jobs":[', b"]}")


def merged_enqueues(bodies: Sequence[bytes]) -> bytes:
    """Requests to enqueue, each of at least one job, as one with all their jobs."""
    if len(bodies) == 1:
        return bodies[0]
    opening, closing = _ENQUEUE
    return opening + b",".join([body[len(opening) : -len(closing)] for body in bodies]) + closing


def decode_request(route: Route, body: bytes) -> Asked:
    """Raises what msgspec does when the body is not such a request."""
    codec = CODECS[route.name]
    asked = codec.request_decoder.decode(body or b"{}")
    return Asked(codec.request_from_wire(asked), getattr(asked, "wait_s", 0.0))


def encode_answer(route: Route, answer: Any) -> bytes:
    return _encode(CODECS[route.name].answer_to_wire(answer))


def decode_answer(route: Route, body: bytes | bytearray) -> Any:
    codec = CODECS[route.name]
    return codec.answer_from_wire(codec.answer_decoder.decode(body))


DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a body that is not as it should be raises."""
