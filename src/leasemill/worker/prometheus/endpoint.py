"""Serves the metrics by HTTP, in threads of its own: `GET /metrics`.

A scrape waits neither for the event loop nor for the store. What must never happen: a client that keeps a worker from
working or from ending.
"""

from __future__ import annotations

import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, NamedTuple

from leasemill.errors import Invalid
from leasemill.worker.prometheus.samples import CONTENT_TYPE, Samples, exposition

log = logging.getLogger("leasemill.worker")

LOOPBACK: Final = "127.0.0.1"
PATH: Final = "/metrics"
CLIENT_S: Final = 5.0
"""A client may take so long to send its request, or to read the response."""

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]*):)?(?P<port>\d{1,5})")


class Address(NamedTuple):
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"


def parsed_address(text: str) -> Address:
    """Read an address. `9464` and `:9464` mean the loopback interface: metrics are public only on request."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise Invalid(
            f"--metrics {text}: not an address; write HOST:PORT, for example 127.0.0.1:9464, or 0.0.0.0:9464 for "
            "every interface; without a host it is 127.0.0.1"
        )
    return Address((match["host"] or LOOPBACK).strip("[]"), int(match["port"]))


class Endpoint:
    """Listens as soon as it is created, so that an address in use is noticed before any job is claimed."""

    def __init__(self, address: Address, samples: Callable[[], Samples]) -> None:
        try:
            self._server = _server(address, samples)
        except OSError as error:
            raise Invalid(
                f"--metrics {address.host}:{address.port}: cannot listen there: {error.strerror or error}; choose "
                "another port, or stop what uses it"
            ) from None
        host, port = self._server.server_address[:2]
        self.address = Address(str(host), int(port))

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="leasemill-metrics", daemon=True).start()
        log.info("metrics at %s", self.address.url)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """A plain server: http.server's asks the name service for its own name first."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape failed", exc_info=True)


def _server(address: Address, samples: Callable[[], Samples]) -> _Server:
    class Scrape(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version, sys_version = "leasemill", ""

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(HTTPStatus.NOT_FOUND, explain=f"The metrics are at {PATH}")
                return
            body = exposition(samples()).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name there)
            log.debug(format, *args)

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    return Server(address, Scrape)
