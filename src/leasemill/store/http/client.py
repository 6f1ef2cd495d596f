"""Asking a server: one command, one POST. Commands block, in their callers' threads; waits are in an event loop.

Both have a pool of connections. A forked child has its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from http import HTTPStatus
from typing import Any, Final, TypeVar

import httpx

from leasemill.errors import Unavailable
from leasemill.kernel.command import Command
from leasemill.store.expiries import Expiries
from leasemill.store.http.address import ServerAddress
from leasemill.store.http.asking import Answered, Attempts, answered_by
from leasemill.store.sources import Entropy
from leasemill.wire.codec import encode_request
from leasemill.wire.expired import EXPIRED, LISTENS
from leasemill.wire.expired import read as read_expired
from leasemill.wire.routes import BY_COMMAND

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""The longest a server may take over a command, waiting it was asked to do not counted."""
IDLE_S: Final = 30.0
"""Less than a server keeps an idle connection."""

AnswerT = TypeVar("AnswerT")


class HttpClient:
    """Of one server. `ask` is for threads, `ask_waiting` for one event loop."""

    def __init__(self, address: ServerAddress, entropy: Entropy, expiries: Expiries) -> None:
        self._address = address
        self._entropy = entropy
        self._expiries = expiries
        self._token = address.current_token()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._client = httpx.Client(**self._options())
        self._waiting_client: httpx.AsyncClient | None = None

    def ask(self, command: Command[AnswerT]) -> AnswerT:
        if self._pid != os.getpid() and not self._closed.is_set():
            self._reset()  # a parent's connections are not a child's
        route = BY_COMMAND[type(command)]
        body, attempts = encode_request(route, command), self._attempts(command)
        while True:
            if self._closed.is_set():
                raise self.closed()
            try:
                response = self._client.post(
                    self._address.base + route.path, content=body, headers=self._headers(), timeout=_timeout(0)
                )
            except httpx.TransportError as error:
                if self._closed.is_set():
                    raise self.closed() from None
                self._closed.wait(attempts.after_error(error))
                continue
            except RuntimeError:
                if not self._closed.is_set():
                    raise
                raise self.closed() from None  # as httpx says it
            answered = self._noted(response)
            if answered.status == HTTPStatus.UNAUTHORIZED and self._has_new_token():
                continue
            pause_s = attempts.after(answered)
            if pause_s is None:
                answer: AnswerT = attempts.read(answered)
                return answer
            self._closed.wait(pause_s)

    async def ask_waiting(self, command: Command[AnswerT], wait_s: float) -> AnswerT:
        """The answer of a command that the server may take so long over."""
        if self._waiting_client is None:
            self._waiting_client = httpx.AsyncClient(**self._options())
        route = BY_COMMAND[type(command)]
        body, attempts = encode_request(route, command), self._attempts(command)
        while True:
            try:
                response = await self._waiting_client.post(
                    self._address.base + route.path, content=body, headers=self._headers(), timeout=_timeout(wait_s)
                )
            except httpx.TransportError as error:
                await asyncio.sleep(attempts.after_error(error))
                continue
            answered = self._noted(response)
            if answered.status == HTTPStatus.UNAUTHORIZED and self._has_new_token():
                continue
            pause_s = attempts.after(answered)
            if pause_s is None:
                answer: AnswerT = attempts.read(answered)
                return answer
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    async def close_waiting(self) -> None:
        if self._waiting_client is not None:
            await self._waiting_client.aclose()

    def closed(self) -> Unavailable:
        return Unavailable(f"this store, {self._address.base}, is closed; open another")

    def _attempts(self, command: Command[Any]) -> Attempts:
        return Attempts(self._address.base, BY_COMMAND[type(command)], self._entropy.jitter())

    def _options(self) -> dict[str, Any]:
        is_encrypted = self._address.base.startswith("https:")  # where it is not, certificates are read in vain
        return {
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_S),
            "headers": {"user-agent": "leasemill", "accept": "application/json"},
            "follow_redirects": False,
            "verify": is_encrypted,
        }

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if self._expiries.listeners:
            headers[LISTENS] = "1"
        return headers

    def _noted(self, response: httpx.Response) -> Answered:
        if EXPIRED in response.headers:
            self._expiries.notify(read_expired(response.headers[EXPIRED]))
        return answered_by(response)

    def _has_new_token(self) -> bool:
        before, self._token = self._token, self._address.current_token()
        return self._token != before


def _timeout(wait_s: float) -> httpx.Timeout:
    return httpx.Timeout(wait_s + ANSWER_S, connect=CONNECT_S)
