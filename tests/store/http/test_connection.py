"""Connections of the client: every way an answer may come, when one is used again, and proxies."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from leasemill.store.http import connection as connection_module
from leasemill.store.http.connection import Connection, DirectCalls, origin_of
from leasemill.store.http.httpx_calls import WaitingCalls
from leasemill.store.http.retry_policy import CallFailed
from leasemill.store.http.store import HttpStore

LIMIT_S = 30.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7"


class Peer:
    """Answers each request with the next of these; an empty one closes the connection instead."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = iter(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(ConnectionError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        """One connection at a time: a client that opens a second one has given up the first."""
        while request := connection.recv(65_536):
            while not request.endswith(b"{}"):
                request += connection.recv(65_536)
            self.requests.append(request)
            answer = next(self._answers)
            if not answer:
                return
            half = len(answer) // 2  # in two pieces, as they come from far away
            connection.sendall(answer[:half])
            connection.sendall(answer[half:])
            if not _says_its_length(answer):
                return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _says_its_length(answer: bytes) -> bool:
    """If not, the end of the connection is its end."""
    said = b"content-length" in answer.lower() or b"chunked" in answer
    return said and b"connection: close" not in answer


@contextmanager
def connected(*answers: bytes) -> Iterator[tuple[DirectCalls, Peer]]:
    peer = Peer(*answers)
    connections = DirectCalls(origin_of(f"{peer.base}/prefix", None), LIMIT_S)
    try:
        yield connections, peer
    finally:
        connections.close()
        peer.close()


def posted(connections: DirectCalls) -> tuple[int, bytes]:
    response = connections.post("/v1/get_time", {"x-a": "b"}, b"{}")
    return response.status, bytes(response.body)


def test_a_request_has_what_a_server_needs_and_no_more() -> None:
    with connected(OK) as (connections, peer):
        assert posted(connections) == (200, b"7")
        name = peer.base.removeprefix("http://").encode()
        head = b"POST /prefix/v1/get_time HTTP/1.1\r\nhost: %s\r\ncontent-length: 2\r\nx-a: b\r\n\r\n" % name
        assert peer.requests == [head + b"{}"]


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"a" * 100_000, 200, b"a" * 100_000),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 204 No Content\r\nx: content-length\r\n\r\n", 204, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"7"),
        (b"HTTP/1.0 502 Bad Gateway\r\n\r\nto the end", 502, b"to the end"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
            200,
            b"abc0123456789",
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\ntrailer: b\r\n\r\n", 200, b"a"),
    ],
)
def test_an_answer_is_read_however_it_comes(answer: bytes, status: int, body: bytes) -> None:
    with connected(answer, OK) as (connections, _):
        assert posted(connections) == (status, body)
        assert posted(connections) == (200, b"7")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconte",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\ncontent-length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\ncontent-length",
        b"HTTP/1.1 abc\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx: " + b"a" * 200_000,
    ],
)
def test_what_is_no_answer_is_a_failed_call_and_its_connection_is_given_up(answer: bytes) -> None:
    with connected(answer, OK) as (connections, peer):
        with pytest.raises(CallFailed) as failed:
            posted(connections)
        assert failed.value.was_sent
        assert str(failed.value)
        assert posted(connections) == (200, b"7")
        assert peer.connections == 2


def test_a_connection_is_used_again() -> None:
    with connected(OK, OK, OK) as (connections, peer):
        assert [posted(connections) for _ in range(3)] == [(200, b"7")] * 3
        assert peer.connections == 1


def test_one_that_the_server_closes_is_not() -> None:
    closing = OK.replace(b"content-length", b"connection: close\r\ncontent-length")
    with connected(closing, OK) as (connections, peer):
        assert [posted(connections) for _ in range(2)] == [(200, b"7")] * 2
        assert peer.connections == 2


def test_one_that_the_server_closed_without_a_word_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections = DirectCalls(origin_of(f"http://127.0.0.1:{listening.getsockname()[1]}", None), LIMIT_S)
        closed = threading.Event()

        def answer_twice() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    received = b""
                    while not received.endswith(b"{}"):
                        received += connection.recv(65_536)
                    connection.sendall(OK)
                closed.set()

        answering = threading.Thread(target=answer_twice)
        answering.start()
        assert posted(connections) == (200, b"7")
        assert closed.wait(LIMIT_S)
        assert posted(connections) == (200, b"7")
        answering.join(LIMIT_S)
        connections.close()


def test_nor_is_one_that_was_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_S", 0.0)
    with connected(OK, OK) as (connections, peer):
        assert [posted(connections) for _ in range(2)] == [(200, b"7")] * 2
        assert peer.connections == 2


def test_whom_nobody_answers_was_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    connections = DirectCalls(origin_of(f"http://127.0.0.1:{port}", None), LIMIT_S)
    with pytest.raises(CallFailed) as failed:
        posted(connections)
    assert not failed.value.was_sent


def test_closing_ends_a_call_that_another_thread_is_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        connections = DirectCalls(origin_of(base, None), LIMIT_S)
        failures: list[Exception] = []
        calling = threading.Thread(target=lambda: failures.append(failure_of(lambda: posted(connections))))
        calling.start()
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(65_536)
            connections.close()
            calling.join(LIMIT_S)
        assert isinstance(failures[0], CallFailed)


def failure_of(call: Callable[[], object]) -> Exception:
    with pytest.raises(CallFailed) as failed:
        call()
    return failed.value


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(OK)
    monkeypatch.setenv("http_proxy", peer.base)
    monkeypatch.setenv("no_proxy", "other.example")
    try:
        with HttpStore("http://jobs.example:7411") as store:
            assert store.time() == 7
        assert peer.requests[0].startswith(b"POST http://jobs.example:7411/v1/get_time HTTP/1.1\r\n")
    finally:
        peer.close()


def test_one_that_is_not_for_this_server_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(OK)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    try:
        with HttpStore(peer.base) as store:
            assert store.time() == 7
        assert peer.requests[0].startswith(b"POST /v1/get_time HTTP/1.1\r\n")
    finally:
        peer.close()


GARBLED = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 8\r\n\r\nnot gzip"


def test_an_answer_that_a_proxy_garbled_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(GARBLED, OK)
    monkeypatch.setenv("http_proxy", peer.base)
    monkeypatch.setenv("no_proxy", "other.example")
    try:
        with HttpStore("http://jobs.example:7411") as store:
            assert store.time() == 7
    finally:
        peer.close()


async def test_nor_is_one_that_was_waited_for() -> None:
    peer = Peer(GARBLED)
    calls = WaitingCalls(peer.base, LIMIT_S)
    try:
        with pytest.raises(CallFailed):
            await calls.post("/", {}, b"{}", 0.0)
    finally:
        await calls.close()
        peer.close()


def test_an_answer_that_comes_before_the_request_was_sent_is_read() -> None:
    """A proxy that finds a request too large reads no more of it, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\n\r\ntoo large")

        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        calls = DirectCalls(origin_of(f"http://127.0.0.1:{listening.getsockname()[1]}", None), LIMIT_S)
        answer = calls.post("/", {}, b"x" * 50_000_000)
        assert (answer.status, answer.body) == (413, b"too large")
        assert not calls._idle, "nothing more can be sent on it"
        refusing.join(LIMIT_S)


def test_a_server_that_closes_before_it_has_all_did_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def close() -> None:
            connection, _ = listening.accept()
            connection.close()

        refusing = threading.Thread(target=close, daemon=True)
        refusing.start()
        calls = DirectCalls(origin_of(f"http://127.0.0.1:{listening.getsockname()[1]}", None), LIMIT_S)
        with pytest.raises(CallFailed):
            calls.post("/", {}, b"x" * 50_000_000)
        refusing.join(LIMIT_S)


@pytest.mark.parametrize("host", ["jobs..example", "a" * 64 + ".example"])
def test_a_name_that_no_host_can_have_cannot_be_reached(host: str) -> None:
    with pytest.raises(CallFailed) as failed:
        Connection(origin_of(f"http://{host}", None), LIMIT_S)
    assert not failed.value.was_sent


def test_a_call_that_is_interrupted_is_never_continued_without_tls() -> None:
    near, far = socket.socketpair()
    context = ssl.create_default_context()
    with far:
        wrapped = context.wrap_socket(near, server_hostname="localhost", do_handshake_on_connect=False)
        connection = Connection.__new__(Connection)
        connection._socket = wrapped
        connection.interrupt()
        assert wrapped._sslobj is not None  # type: ignore[attr-defined]  # else another thread's write is not encrypted
        with pytest.raises(CallFailed):
            connection.post(b"POST / HTTP/1.1\r\nauthorization: Bearer s3cret\r\n\r\n", b"{}")
        connection.close()
        assert b"s3cret" not in far.recv(65_536)


@pytest.mark.parametrize("error", [ValueError("Read on closed or unwrapped SSL socket."), AttributeError("read")])
def test_a_socket_that_was_closed_under_a_call_gives_no_answer(error: Exception) -> None:
    class Closed:
        def sendall(self, _data: bytes) -> None:
            raise error

    connection = Connection.__new__(Connection)
    connection._socket = Closed()  # type: ignore[assignment]
    with pytest.raises(CallFailed) as failed:
        connection.post(b"", b"{}")
    assert failed.value.was_sent
