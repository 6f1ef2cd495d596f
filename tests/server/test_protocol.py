"""Deadlines of connections: a head that does not come, a body nobody wants, an answer nobody reads."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from leasemill.server import protocol, uvicorn_server
from leasemill.server.openapi import written
from leasemill.server.pages import Pages
from leasemill.server.protocol import Connected, guarded
from leasemill.server.refusals import HEAD_BYTES, HEADERS
from leasemill.store.memory import MemoryStore
from leasemill.wire.problems import Problem
from tests.lab.http_server import ServerThread
from tests.lab.processes import wait_until
from tests.lab.served import post, read_reply, status_of

LIMIT_S = 30.0
TIME = "/v1/get_time"


@contextmanager
def running(connected: Connected) -> Iterator[ServerThread]:
    server = ServerThread({"http": guarded(connected)})
    try:
        with MemoryStore() as store, server.serving(store):
            yield server
    finally:
        server.close()


def address_of(server: ServerThread) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@contextmanager
def served(connected: Connected) -> Iterator[tuple[str, int]]:
    with running(connected) as server:
        yield address_of(server)


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, LIMIT_S)


def asked(connection: socket.socket) -> int:
    connection.sendall(post(TIME))
    return status_of(read_reply(connection))


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_cut_off(connection: socket.socket, sent: bytes) -> bool:
    """Whether sending this again and again ends because the server ends it."""
    try:
        while True:
            connection.sendall(sent)
    except ConnectionError:
        return True


@pytest.mark.parametrize("begun", [b"", b"P", b"POST /v1/get_time HTTP/1.1\r\nhost: localhost\r\n"])
def test_a_connection_that_sends_no_whole_head_is_closed(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    connected = Connected()
    with served(connected) as address, connect(address) as connection:
        connection.sendall(begun)
        assert is_closed(connection)
        wait_until(lambda: not connected.silent, "nobody is waited for", LIMIT_S)


def test_so_is_one_whose_second_head_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with served(Connected()) as address, connect(address) as connection:
        assert asked(connection) == 200
        connection.sendall(b"POST /v1")
        assert is_closed(connection)


def test_a_connection_that_is_used_stays_open_longer_than_a_head_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with served(Connected()) as address, connect(address) as first, connect(address) as slow:
        assert asked(first) == 200
        assert is_closed(slow)  # later than the deadline of the first head
        assert asked(first) == 200


def test_of_silent_connections_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 600.0)
    connected = Connected(most_silent=5)
    with served(connected) as address:
        silent = [connect(address) for _ in range(20)]
        try:
            for connection in silent[:15]:
                assert is_closed(connection)
            with connect(address) as other:
                assert asked(other) == 200
            assert len(connected.silent) <= 5
        finally:
            for connection in silent:
                connection.close()


def test_whoever_sends_on_after_a_refusal_is_cut_off_and_can_read_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.3)
    with served(Connected()) as address, connect(address) as connection:
        connection.sendall(post(TIME).replace(b"content-length: 2", b"content-length: 9999999999"))
        assert status_of(read_reply(connection)) == 413
        assert is_cut_off(connection, b"a" * 65_536)


def test_a_refused_body_that_ends_in_time_leaves_the_connection_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Connected()) as address, connect(address) as connection:
        refused = post(TIME, b" " * 1000).replace(b"application/json", b"text/plain")
        connection.sendall(refused[:-500])
        assert status_of(read_reply(connection)) == 415
        monkeypatch.setattr(protocol, "LINGER_S", 0.0)
        connection.sendall(refused[-500:])
        assert asked(connection) == 200
        assert asked(connection) == 200


def end_a_refused_body(connection: socket.socket) -> None:
    refused = post(TIME, b" ").replace(b"application/json", b"text/plain")
    connection.sendall(refused[:-1])
    assert status_of(read_reply(connection)) == 415
    connection.sendall(refused[-1:])


def test_a_connection_that_is_silent_after_a_refused_body_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with served(Connected()) as address, connect(address) as connection:
        end_a_refused_body(connection)
        assert is_closed(connection)


def test_a_connection_that_is_silent_after_a_refused_body_makes_room_for_the_next_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 600.0)
    connected = Connected(most=1)
    with served(connected) as address, connect(address) as connection:
        end_a_refused_body(connection)
        wait_until(lambda: bool(connected.silent), "its next head is waited for", LIMIT_S)
        with connect(address) as other:
            assert asked(other) == 200
        assert is_closed(connection)


def unsent_bytes(server: ServerThread) -> int:
    """What the server has for clients that do not read."""
    connections = server.server.server_state.connections
    return sum(one.transport.get_write_buffer_size() for one in connections)


def has_answered(server: ServerThread, count: int) -> bool:
    return server.server.server_state.total_requests == count


@pytest.mark.parametrize(
    "last", [post(TIME, more="connection: close"), b"no request\r\n\r\n", b""], ids=["close", "malformed", "idle"]
)
def test_a_connection_that_is_closed_with_unread_answers_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    monkeypatch.setattr(protocol, "STUCK_S", 0.3)
    if not last:
        monkeypatch.setattr(uvicorn_server, "KEEP_ALIVE_S", 0.3)
    connected = Connected()
    with running(connected) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(address_of(server))
        ahead = post(TIME, more="x-request-id: " + "a" * 10_000)  # which is returned
        for count in itertools.count(1):
            connection.sendall(ahead)
            wait_until(partial(has_answered, server, count), "an answer", LIMIT_S)
            if server.call(partial(unsent_bytes, server)):
                break
        connection.sendall(last)
        wait_until(lambda: not server.server.server_state.connections, "the connection to be cut off", LIMIT_S)


def test_whoever_never_reads_its_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STUCK_S", 0.3)
    with served(Connected()) as address, connect(address) as connection:
        request = (
            post("/openapi.json").replace(b"POST", b"GET").replace(b"content-length: 2", b"content-length: 0")[:-2]
        )
        assert is_cut_off(connection, request * 100)


REFERENCE = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_what_is_sent_ahead_is_not_begun_before_the_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    reference = Pages.reference

    async def counted(self: Pages, request: Request) -> Response:
        begun.append(request)
        return await reference(self, request)

    monkeypatch.setattr(Pages, "reference", counted)
    count = 200  # 40 megabytes
    with served(Connected()) as address, connect(address) as connection, connect(address) as other:
        connection.sendall(REFERENCE * count)
        seen = -1
        while seen < len(begun):  # until nothing more is begun
            seen = len(begun)
            assert [asked(other) for _ in range(50)] == [200] * 50
        assert 0 < seen < count / 2
        replies = connection.makefile("rb")
        for _ in range(count):
            assert replies.readline().startswith(b"HTTP/1.1 200 ")
            headers = dict(line.strip().lower().split(b": ", 1) for line in iter(replies.readline, b"\r\n"))
            assert len(replies.read(int(headers[b"content-length"]))) == len(written())
    assert len(begun) == count


def test_of_what_is_sent_ahead_one_is_begun_in_each_turn() -> None:
    turn, turns = 0, list[int]()

    class Sender:
        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

        def go_on(self) -> None:
            turns.append(turn)

    async def run() -> None:
        nonlocal turn
        connected = Connected()
        for _ in range(5):
            connected.line_up(Sender())  # type: ignore[arg-type]
        while len(turns) < 5:
            turn += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    assert len(set(turns)) == 5


def problem_in(reply: bytes, status: int, reason: str) -> Problem:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert status_of(reply) == status
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    found = msgspec.json.decode(body, type=Problem)
    assert (found.status, found.reason) == (status, reason)
    return found


@pytest.mark.parametrize("headers", [b"x: " + b"a" * (HEAD_BYTES + 10), b"x: y\r\n" * (HEADERS + 1) + b"\r\n"])
def test_a_head_that_is_too_large_is_refused_with_a_problem(headers: bytes) -> None:
    with served(Connected()) as address, connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + headers)
        problem_in(read_reply(connection), 431, "large_head")


def test_a_malformed_head_is_refused_with_a_problem_whose_id_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(Connected()) as address, connect(address) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        found = problem_in(read_reply(connection), 400, "malformed")
    assert found.request_id is not None
    assert found.request_id in caplog.text


def test_a_full_server_returns_a_problem_and_when_to_retry() -> None:
    with served(Connected(most=0)) as address, connect(address) as connection:
        reply = read_reply(connection)
        problem_in(reply, 503, "unavailable")
        assert b"retry-after: 1\r\n" in reply


@pytest.mark.parametrize("request_", [post(TIME), REFERENCE], ids=["command", "page"])
def test_an_unexpected_error_is_a_problem_without_details(monkeypatch: pytest.MonkeyPatch, request_: bytes) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("s3cret")

    monkeypatch.setattr(MemoryStore, "arun", fail)
    monkeypatch.setattr(Pages, "reference", fail)
    with served(Connected()) as address, connect(address) as connection:
        connection.sendall(request_)
        reply = read_reply(connection)
    assert status_of(reply) == 500
    assert b"application/problem+json" in reply
    assert b"s3cret" not in reply
