"""An exchange's short ways beside those of ASGI: the same body, the same answer, in one write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from leasemill.server.exchange import exchange_of
from leasemill.server.protocol import Connected, guarded

HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"seven")]
ANSWER = b'{"a":1}'
LENGTH = b"content-length: 2\r\n\r\n{}"
REQUESTS = {
    "kept": b"POST / HTTP/1.1\r\nhost: h\r\n" + LENGTH,
    "closed": b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n" + LENGTH,
    "old": b"POST / HTTP/1.0\r\nhost: h\r\n" + LENGTH,
    "head": b"HEAD / HTTP/1.1\r\nhost: h\r\n\r\n",
    "expecting": b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\n" + LENGTH,
    "chunked": b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
}


class Transport(asyncio.Transport):
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_over = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def exchanged(app: Any, *pieces: bytes) -> Transport:
    state, transport = ServerState(), Transport()
    state.default_headers = [(b"date", b"today")]
    config = uvicorn.Config(app, http=guarded(Connected()), log_config=None, access_log=False, lifespan="off")
    config.load()
    make: Any = config.http_protocol_class
    protocol = make(config=config, server_state=state, app_state={})
    protocol.connection_made(transport)
    for piece in pieces:
        protocol.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(*state.tasks)
    protocol.connection_lost(None)
    return transport


async def by_asgi(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    length = (b"content-length", b"%d" % len(ANSWER))
    await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, length]})
    await send({"type": "http.response.body", "body": ANSWER})


async def by_exchange(scope: Any, receive: Any, _send: Any) -> None:
    exchange = exchange_of(scope)
    assert exchange is not None
    if exchange.take_body() is None:
        await receive()
    exchange.reply(200, HEADERS, ANSWER)


def parts(answer: bytes) -> tuple[bytes, set[bytes], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, set(lines), body


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=REQUESTS)
async def test_an_answer_in_one_write_is_what_asgi_sends_in_two(request_bytes: bytes) -> None:
    long, short = await exchanged(by_asgi, request_bytes), await exchanged(by_exchange, request_bytes)
    *continued, answer = short.writes
    assert continued == [one for one in long.writes if one.startswith(b"HTTP/1.1 100 ")]
    assert parts(answer) == parts(b"".join(long.writes[len(continued) :]))
    assert short.is_over == long.is_over


@pytest.mark.parametrize("name", ["kept", "chunked"])
async def test_a_body_is_taken_when_it_is_whole_and_not_before(name: str) -> None:
    taken: list[bytes | None] = []

    async def app(scope: Any, receive: Any, _send: Any) -> None:
        exchange = exchange_of(scope)
        assert exchange is not None
        taken.append(exchange.take_body())
        if taken[-1] is None:
            taken.append((await receive())["body"])
        exchange.reply(200, HEADERS, ANSWER)

    whole = REQUESTS[name]
    await exchanged(app, whole)
    assert taken == [b"{}"]
    taken.clear()
    middle = whole.index(b"{")
    await exchanged(app, whole[:middle], whole[middle:])
    assert taken == [None, b"{}"]


async def test_a_caller_that_goes_after_its_body_was_taken_is_noticed() -> None:
    after: list[str] = []

    async def app(scope: Any, receive: Any, _send: Any) -> None:
        exchange = exchange_of(scope)
        assert exchange is not None
        exchange.take_body()
        after.append("waits")
        leaving = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        assert not leaving.done()
        exchange.disconnected = True
        exchange.message_event.set()
        after.append((await leaving)["type"])
        exchange.reply(200, HEADERS, ANSWER)

    transport = await exchanged(app, REQUESTS["kept"])
    assert after == ["waits", "http.disconnect"]
    assert transport.writes == []
