"""A server that answers as it was told, whatever it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, TypeAlias

PROBLEM = "application/problem+json"
Answer: TypeAlias = Callable[[BaseHTTPRequestHandler], None]


class LocalServer:
    """Answers every request with `answer`, on a thread of its own, until it is closed."""

    def __init__(self, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:  # noqa: N805
                answer(handler)

            def log_message(handler, *_: Any) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Scripted(LocalServer):
    """A server that answers as it was told, request by request; what it was sent is kept."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._script = iter(answers)
        super().__init__(self._answer)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        read_body(handler)
        self.asked.append((handler.path, {name.lower(): value for name, value in handler.headers.items()}))
        next(self._script)(handler)


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    return handler.rfile.read(int(handler.headers["content-length"]))


def says(status: int, body: bytes, kind: str = "application/json", retry_after: str | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        if retry_after is not None:
            handler.send_header("retry-after", retry_after)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()
