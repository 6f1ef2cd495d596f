"""The last answers of a connection where no application gives one: the request is malformed, or there are too many."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from leasemill.wire.problems import PROBLEM_TYPE, Problem, problem

HEAD_BYTES: Final = 32 * 1024
"""The most that may come between two pieces of content: a request's line and headers, what a chunk adds, trailers."""
HEADERS: Final = 200


def written(shown: Problem, *headers: tuple[bytes, bytes]) -> bytes:
    """A problem as the last answer of a connection, where there is no application to send it."""
    body = msgspec.json.encode(shown)
    lines = [f"HTTP/1.1 {shown.status} {shown.title}".encode()]
    length = (b"content-length", b"%d" % len(body))
    lines += [
        b"%b: %b" % header
        for header in ((b"content-type", PROBLEM_TYPE.encode()), length, (b"connection", b"close"), *headers)
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


FULL: Final = written(
    problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "the server has as many connections as it takes"),
    (b"retry-after", b"1"),
)
MALFORMED: Final = problem(
    HTTPStatus.BAD_REQUEST, "malformed", "the request is malformed, or could be read in two ways"
)
LARGE_HEAD: Final = problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "large_head",
    f"the head of the request has more than {HEAD_BYTES:,} bytes or {HEADERS} headers",
)
