"""Requests of one connection: in pieces, one after the other, sent ahead; what an error and the end of a server do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.server.app import ServerApp
from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread
from tests.lab.processes import wait_until
from tests.lab.served import post, read_reply, status_of

LIMIT_S = 30.0
TIME = "/v1/get_time"
PLAIN = post(TIME)
CLAIM = {"worker": "w", "queues": ["mail"], "limit": 1, "wait_s": 30}


@pytest.fixture
def connection(server: ServerThread, app: ServerApp) -> Iterator[socket.socket]:
    assert app is not None
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        yield connection


def next_reply(connection: socket.socket) -> bytes:
    """One answer, and not a byte of the next."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1)
    length = int(received.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while length:
        chunk = connection.recv(length)
        assert chunk
        received, length = received + chunk, length - len(chunk)
    return received


def answers(connection: socket.socket, count: int) -> list[bytes]:
    """The bodies of so many answers that come one after the other."""
    replies = [next_reply(connection) for _ in range(count)]
    assert {status_of(reply) for reply in replies} == {200}
    return [reply.partition(b"\r\n\r\n")[2] for reply in replies]


def enqueue(job_id: str) -> bytes:
    return post("/v1/enqueue", msgspec.json.encode({"jobs": [{"id": job_id, "queue": "mail", "kind": "send"}]}))


def test_a_connection_takes_one_request_after_the_other(connection: socket.socket) -> None:
    for raw in (PLAIN, PLAIN.replace(b"POST", b"GET"), PLAIN, PLAIN * 3, PLAIN):
        connection.sendall(raw)
        for _ in range(raw.count(b"HTTP/1.1")):
            assert status_of(next_reply(connection)) == (405 if raw.startswith(b"GET") else 200)


def test_a_request_in_pieces_follows_a_whole_one(connection: socket.socket, store: MemoryStore) -> None:
    connection.sendall(enqueue("a"))
    answers(connection, 1)
    head, separator, body = enqueue("b").partition(b"\r\n\r\n")
    for piece in (head[:20], head[20:] + separator, body[:7], body[7:]):
        connection.sendall(piece)
    answers(connection, 1)
    assert {job.spec.id for job in store.jobs().jobs} == {"a", "b"}


def test_a_server_that_stops_answers_a_request_and_closes_its_connection() -> None:
    server = ServerThread()
    host, port = server.url.removeprefix("http://").split(":")
    try:
        with (
            MemoryStore() as store,
            server.serving(store) as app,
            socket.create_connection((host, int(port)), LIMIT_S) as connection,
        ):
            connection.sendall(post("/v1/claim", msgspec.json.encode(CLAIM)))
            wait_until(lambda: app.polls.open == 1, "the claim to wait", LIMIT_S)
            server.server.should_exit = True
            wait_until(lambda: not server.server.servers[0].is_serving(), "the server to stop", LIMIT_S)
            store.enqueue([JobSpec("a", "mail", "send")])
            reply = next_reply(connection)
            assert b"connection: close" in reply
            assert msgspec.json.decode(reply.partition(b"\r\n\r\n")[2])[0]["job"]["id"] == "a"
            assert connection.recv(1) == b""
    finally:
        server.close()


def test_what_comes_before_the_answer_is_answered_after_it(
    connection: socket.socket, app: ServerApp, store: MemoryStore
) -> None:
    connection.sendall(post("/v1/claim", msgspec.json.encode(CLAIM)))
    wait_until(lambda: app.polls.open == 1, "the claim to wait", LIMIT_S)
    connection.sendall(PLAIN)
    connection.sendall(PLAIN * 2)
    store.enqueue([JobSpec("a", "mail", "send")])
    leases, *times = answers(connection, 4)
    assert msgspec.json.decode(leases)[0]["job"]["id"] == "a"
    assert all(int(time) > 0 for time in times)


def test_what_the_server_does_not_expect_is_an_answer_without_a_trace(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_self: MemoryStore, _command: Any) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(MemoryStore, "arun", broken)
    connection.sendall(PLAIN)
    reply = read_reply(connection)
    assert status_of(reply) == 500
    assert b"mistake" not in reply
    assert connection.recv(1) == b""
    assert "a mistake of ours" in caplog.text


def test_an_error_of_the_store_is_answered_as_ever(connection: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_self: MemoryStore, _command: c.Command[Any]) -> Any:
        raise Unavailable("the disk is away")

    monkeypatch.setattr(MemoryStore, "arun", away)
    connection.sendall(PLAIN)
    assert status_of(read_reply(connection)) == 503
