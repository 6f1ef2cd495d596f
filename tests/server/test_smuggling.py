"""One reading of the same bytes: what others could take for a different request is refused, however it is cut.

The protocol is driven without a socket. A program before the server, such as a proxy, is played by h11, which is strict
and was written by others: what this server takes for a request h11 takes for the same one.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from leasemill.server.protocol import Connected, guarded
from leasemill.server.refusals import HEAD_BYTES, HEADERS
from tests.lab.served import post
from tests.server.attack import nonsense


class Seen(NamedTuple):
    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Transport:
    """As much of one as uvicorn uses."""

    def __init__(self) -> None:
        self.written = b""
        self.is_over = False
        self.is_paused = False

    def write(self, data: bytes) -> None:
        assert not self.is_over
        self.written += data

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_extra_info(self, _name: str) -> None:
        return None


async def answered(pieces: Iterable[bytes]) -> tuple[list[Seen], Transport]:
    """The requests that a connection saw in these, and what became of it."""
    seen: list[Seen] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, has_more = body + message["body"], message["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = [header for header in scope["headers"] if header[0] != b"upgrade"]
        seen.append(Seen(scope["method"], target.decode(), headers, body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"%d" % min(len(seen), 9)})

    config = uvicorn.Config(app, http=guarded(Connected()), log_config=None, access_log=False, ws="none")
    config.load()
    protocol = cast("type[Any]", config.http_protocol_class)(config=config, server_state=ServerState(), app_state={})
    transport = Transport()
    protocol.connection_made(transport)
    for piece in pieces:
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(100):
            if not transport.is_paused:
                break
            await asyncio.sleep(0)
        if transport.is_over:
            break
        assert not transport.is_paused
        protocol.data_received(piece)
    for _ in range(200):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    await asyncio.sleep(0)
    return seen, transport


async def statuses(*pieces: bytes) -> list[int]:
    _, transport = await answered(pieces)
    return [int(part[:3]) for part in transport.written.split(b"HTTP/1.1 ")[1:]]


def cuts(source: random.Random, raw: bytes) -> list[bytes]:
    places = sorted(source.randrange(len(raw) + 1) for _ in range(source.randrange(4)))
    return [raw[begin:end] for begin, end in zip([0, *places], [*places, len(raw)], strict=True) if begin < end]


GOOD = post("/v1/get_time")
CHUNKED = GOOD.replace(b"content-length: 2", b"transfer-encoding: chunked")[:-2]
NEXT = b"POST /v1/smuggled HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"


def with_headers(lines: bytes, body: bytes = b"{}") -> bytes:
    return GOOD.replace(b"content-length: 2", lines)[:-2] + body


REFUSED = {
    "both lengths": with_headers(b"content-length: 2\r\ntransfer-encoding: chunked", b"0\r\n\r\n"),
    "both, the other first": with_headers(b"transfer-encoding: chunked\r\ncontent-length: 2", b"0\r\n\r\n"),
    "two lengths": with_headers(b"content-length: 2\r\ncontent-length: 3"),
    "one length twice": with_headers(b"content-length: 2\r\ncontent-length: 2"),
    "a list of lengths": with_headers(b"content-length: 2, 2"),
    "a length with a sign": with_headers(b"content-length: +2"),
    "a negative length": with_headers(b"content-length: -2"),
    "a length in hexadecimal": with_headers(b"content-length: 0x2"),
    "a length with an underscore": with_headers(b"content-length: 1_0"),
    "an empty length": with_headers(b"content-length: "),
    "a length beyond all": with_headers(b"content-length: 18446744073709551616"),
    "a space before the colon": with_headers(b"content-length : 2"),
    "an encoding with a space": with_headers(b"transfer-encoding : chunked", b"0\r\n\r\n"),
    "another encoding": with_headers(b"transfer-encoding: xchunked", b"0\r\n\r\n"),
    "no encoding": with_headers(b"transfer-encoding: identity", b"0\r\n\r\n"),
    "two encodings": with_headers(b"transfer-encoding: gzip, chunked", b"0\r\n\r\n"),
    "chunked first": with_headers(b"transfer-encoding: chunked, identity", b"0\r\n\r\n"),
    "chunked twice": with_headers(b"transfer-encoding: chunked\r\ntransfer-encoding: chunked", b"0\r\n\r\n"),
    "two encodings, in lines": with_headers(b"transfer-encoding: x\r\ntransfer-encoding: chunked", b"0\r\n\r\n"),
    "an encoding after a tab": with_headers(b"transfer-encoding: \x0bchunked", b"0\r\n\r\n"),
    "chunked in 1.0": with_headers(b"transfer-encoding: chunked", b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "lines without CR": GOOD.replace(b"\r\n", b"\n"),
    "one line without CR": with_headers(b"x: y\ncontent-length: 2"),
    "a head that ends without CR": with_headers(b"content-length: 2").replace(b"\r\n\r\n", b"\r\n\n"),
    "a line without LF": with_headers(b"x: y\rcontent-length: 2"),
    "a folded line": with_headers(b"x: y\r\n z\r\ncontent-length: 2"),
    "a line folded with a tab": with_headers(b"x: y\r\n\tz\r\ncontent-length: 2"),
    "a folded length": with_headers(b"content-length:\r\n 2"),
    "a folded first line": GOOD.replace(b"\r\nhost", b"\r\n host"),
    "a NUL in a value": with_headers(b"x: \0\r\ncontent-length: 2"),
    "a name with a space": with_headers(b"x y: z\r\ncontent-length: 2"),
    "a line without a colon": with_headers(b"xyz\r\ncontent-length: 2"),
    "no host": GOOD.replace(b"host: localhost\r\n", b""),
    "two hosts": with_headers(b"host: other\r\ncontent-length: 2"),
    "HTTP/0.9": GOOD.replace(b"HTTP/1.1", b"HTTP/0.9"),
    "HTTP/2.0": GOOD.replace(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/1.2": GOOD.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a target with a host": GOOD.replace(b"/v1", b"http://other/v1"),
    "a tunnel": b"CONNECT other:80 HTTP/1.1\r\nhost: other\r\n\r\n",
    "a tunnel to a path": b"CONNECT / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a tunnel to a command": GOOD.replace(b"POST", b"CONNECT"),
    "a tunnel in chunks": CHUNKED.replace(b"POST", b"CONNECT") + b"2\r\n{}\r\n0\r\n\r\n",
    "a tunnel and an upgrade": with_headers(b"upgrade: h2c\r\nconnection: upgrade").replace(b"POST", b"CONNECT"),
    "a tunnel in 1.0": GOOD.replace(b"POST", b"CONNECT").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a star": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "too many headers": with_headers(b"x: y\r\n" * HEADERS + b"content-length: 2"),
    "too long a head": with_headers(b"x: " + b"y" * HEAD_BYTES + b"\r\ncontent-length: 2"),
    "too long a line": b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "nothing but line ends": b"\r\n" * HEAD_BYTES,
    "a chunk without CR": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "a chunk that ends without CR": CHUNKED + b"2\r\n{}\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n",
    "a chunk with a sign": CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "a chunk in Python's hexadecimal": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk with a space": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    "a chunk with a line end in its extension": CHUNKED + b"2;a\n\r\n{}\r\n0\r\n\r\n",
    "a chunk beyond all": CHUNKED + b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a length in a trailer": CHUNKED + b"2\r\n{}\r\n0\r\ncontent-length: 5\r\n\r\n",
    "too long a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nx: " + b"y" * 2 * HEAD_BYTES,
    "too long an extension": CHUNKED + b"2;" + b"y" * 2 * HEAD_BYTES,
}  # fmt: skip


LARGE_HEADS = {"too many headers", "too long a head", "too long a line", "nothing but line ends"}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("size", [1 << 20, 997, 1])
async def test_what_could_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(name: str, size: int) -> None:
    sent = REFUSED[name] + NEXT
    seen, transport = await answered(sent[at : at + size] for at in range(0, len(sent), size))
    assert seen == []
    assert transport.written.startswith(b"HTTP/1.1 431 " if name in LARGE_HEADS else b"HTTP/1.1 400 ")
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in transport.written
    assert transport.is_over


@pytest.mark.parametrize("size", [1 << 20, 7, 1])
@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (GOOD, b"{}"),
        (with_headers(b"Content-Length:2"), b"{}"),
        (with_headers(b"content-length:  2  "), b"{}"),
        (with_headers(b"content-length: 8", b"\r\n" * 4), b"\r\n" * 4),
        (with_headers(b"content-length: %d" % len(NEXT), NEXT), NEXT),
        (b"\r\n\r\n" + GOOD, b"{}"),
        (with_headers(b"upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\ncontent-length: 2"), b"{}"),
    ],
)  # fmt: skip
async def test_a_request_ends_where_its_length_says_and_the_next_begins_there(
    raw: bytes, body: bytes, size: int
) -> None:
    sent = raw + NEXT
    seen, _ = await answered(sent[at : at + size] for at in range(0, len(sent), size))
    assert [(one.target, one.body) for one in seen] == [("/v1/get_time", body), ("/v1/smuggled", b"")]


UPGRADES = (
    b"upgrade: websocket\r\nconnection: upgrade",
    b"Upgrade: WebSocket\r\nConnection: Upgrade",
    b"connection: upgrade\r\nupgrade: h2c",
    b"upgrade: h2c\r\nconnection: keep-alive, Upgrade",
    b"upgrade: h2c\r\nconnection: keep-alive\r\nconnection: upgrade",
    b"upgrade: a\r\nupgrade: b\r\nUPGRADE: c\r\nconnection: upgrade",
    b"upgrade: h2c, websocket\r\nconnection: upgrade, upgrade",
    b"upgrade: \r\nconnection: upgrade",
    b"upgrade:\r\nconnection:upgrade",
    b"upgrade: TLS/1.0, HTTP/1.1\r\nconnection: Upgrade, close",
    b"upgrade: websocket",
    b"connection: upgrade",
    b"upgrade: connect\r\nconnection: upgrade\r\nx-upgrade: again",
)


@pytest.mark.parametrize("size", [1 << 20, 7, 1])
@pytest.mark.parametrize("lines", UPGRADES, ids=repr)
@pytest.mark.parametrize("method", [b"POST", b"GET", b"OPTIONS", b"PUT"])
async def test_an_upgrade_is_ignored_whatever_it_looks_like(method: bytes, lines: bytes, size: int) -> None:
    sent = with_headers(lines + b"\r\ncontent-length: 2").replace(b"POST", method)
    seen, transport = await answered(sent[at : at + size] for at in range(0, len(sent), size))
    assert [(one.method.encode(), one.target, one.body) for one in seen] == [(method, "/v1/get_time", b"{}")]
    assert transport.written.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH", "TRACE", "QUERY", "SUBSCRIBE"])
@pytest.mark.parametrize("raw", [GOOD, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"], ids=["a length", "chunks"])
async def test_a_body_is_one_whatever_the_method(method: str, raw: bytes) -> None:
    seen, _ = await answered([raw.replace(b"POST", method.encode()), NEXT])
    assert [(one.method, one.body) for one in seen] == [(method, b"{}"), ("POST", b"")]


CHUNKS = {
    "chunks": (with_headers(b"Transfer-Encoding: Chunked", b"1\r\n{\r\n1;a=b\r\n}\r\n0\r\n\r\n"), b"{}"),
    "blank lines": (CHUNKED + b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n" * 4),
    "a request": (CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEXT), NEXT), NEXT),
    "an upgrade": (with_headers(b"upgrade: websocket\r\nconnection: upgrade\r\ntransfer-encoding: chunked",
                                b"2\r\n{}\r\n0\r\n\r\n"), b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("size", [1 << 20, 7, 1])
@pytest.mark.parametrize(("raw", "body"), CHUNKS.values(), ids=CHUNKS)
async def test_chunks_end_where_they_say_and_the_next_request_may_follow_the_answer(
    raw: bytes, body: bytes, size: int
) -> None:
    pieces = [*(raw[at : at + size] for at in range(0, len(raw), size)), NEXT]
    seen, _ = await answered(pieces)
    assert [(one.target, one.body) for one in seen] == [("/v1/get_time", body), ("/v1/smuggled", b"")]


@pytest.mark.parametrize("after", [NEXT, NEXT[:1], b"nonsense"])
async def test_what_is_sent_ahead_after_chunks_is_not_read_and_the_answer_says_so(after: bytes) -> None:
    seen, transport = await answered([CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + after])
    assert [one.target for one in seen] == ["/v1/get_time"]
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in transport.written


async def test_a_trailer_is_no_header() -> None:
    (first, second), _ = await answered([CHUNKED + b"0\r\nauthorization: Bearer x\r\nhost: other\r\n\r\n", NEXT])
    assert [value for name, value in first.headers if name in {b"authorization", b"host"}] == [b"localhost"]
    assert second.target == "/v1/smuggled"


async def test_an_error_is_answered_after_what_came_before_it() -> None:
    assert await statuses(GOOD + GOOD + b"nonsense\r\n\r\n" + GOOD) == [200, 200, 400]


async def test_nothing_after_the_last_request_of_a_connection_is_read() -> None:
    assert await statuses(with_headers(b"connection: close\r\ncontent-length: 2") + NEXT) == [200]
    assert await statuses(GOOD.replace(b"HTTP/1.1", b"HTTP/1.0") + NEXT) == [200]


async def test_a_body_that_was_refused_and_goes_wrong_is_no_second_answer() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, http=guarded(Connected()), log_config=None, access_log=False, ws="none")
    config.load()
    protocol = cast("type[Any]", config.http_protocol_class)(config=config, server_state=ServerState(), app_state={})
    transport = Transport()
    protocol.connection_made(transport)
    protocol.data_received(CHUNKED)
    await asyncio.sleep(0)
    protocol.data_received(b"zz\r\n")
    assert transport.is_over
    assert transport.written.count(b"HTTP/1.1 ") == 1
    protocol.connection_lost(None)


# Beside another reader ---------------------------------------------------------------------------------------------


REQUEST_LINE = re.compile(rb"(?m)^([A-Z]+) +(/\S*) +HTTP/")
"""Several spaces are one to httptools; h11 refuses them."""


def read_by_h11(raw: bytes) -> list[Seen]:
    """The requests at the beginning of these bytes, up to an error or the last of the connection."""
    connection, seen = h11.Connection(h11.SERVER, HEAD_BYTES), list[Seen]()
    connection.receive_data(REQUEST_LINE.sub(rb"\1 \2 HTTP/", raw))
    try:
        while isinstance(request := connection.next_event(), h11.Request):
            body = b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                break
            headers = [(name.lower(), value) for name, value in request.headers if name != b"upgrade"]  # it is ignored
            seen.append(Seen(request.method.decode(), request.target.decode(), headers, body))
            for answer in (h11.Response(status_code=200, headers=[("content-length", "0")]), h11.EndOfMessage()):
                connection.send(answer)
            connection.start_next_cycle()
    except h11.ProtocolError:
        pass
    return seen


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_read_as_a_request_is_read_by_another_in_the_same_way(seed: int) -> None:
    source, read = random.Random(seed), 0
    for _ in range(500):
        raw = _varied(source)
        seen, _ = await answered(cuts(source, raw))
        read += len(seen)
        assert seen == read_by_h11(raw)[: len(seen)], raw
    assert read > 100


def _varied(source: random.Random) -> bytes:
    if source.random() < 0.4:
        return nonsense(source, "k")
    raw = bytearray(source.choice([GOOD, CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", GOOD + NEXT, NEXT + GOOD]))
    for _ in range(source.randrange(3)):
        raw[source.randrange(len(raw))] = source.choice(b"\r\n\t :;,{}\0\x7f\x80aZ09-_")
    return bytes(raw)
