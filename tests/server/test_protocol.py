"""Deadlines of connections: a head that does not come, a body nobody wants, an answer nobody reads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leasemill.server import protocol
from leasemill.server.protocol import HEAD_BYTES, Connected, guarded
from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread
from tests.lab.processes import wait_until
from tests.lab.served import post, read_reply, status_of

LIMIT_S = 30.0
TIME = "/v1/get_time"


@contextmanager
def served(connected: Connected) -> Iterator[tuple[str, int]]:
    server = ServerThread({"http": guarded(connected), "h11_max_incomplete_event_size": HEAD_BYTES})
    try:
        with MemoryStore() as store, server.serving(store):
            host, port = server.url.removeprefix("http://").split(":")
            yield host, int(port)
    finally:
        server.close()


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


def test_whoever_never_reads_its_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STUCK_S", 0.3)
    with served(Connected()) as address, connect(address) as connection:
        request = (
            post("/openapi.json").replace(b"POST", b"GET").replace(b"content-length: 2", b"content-length: 0")[:-2]
        )
        assert is_cut_off(connection, request * 100)


def test_a_head_that_is_too_large_is_refused() -> None:
    with served(Connected()) as address, connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (HEAD_BYTES + 10))
        assert status_of(read_reply(connection)) == 400
