"""Asking a server: one command, one POST. Commands block, in their callers' threads; waits are in an event loop.

Both have connections that are kept. A forked child has its own; what must never happen here is that it uses or shuts
down those of its parent, or waits for a lock that a thread of its parent held.
"""

from __future__ import annotations

import asyncio
import threading
from http import HTTPStatus
from typing import Any, Final, TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel.command import Command
from leasemill.store.expiries import Expiries
from leasemill.store.http.address import ServerAddress
from leasemill.store.http.asking import Answered, Attempts, CallFailed, answered_by
from leasemill.store.http.connection import DirectCalls, Response, origin_of
from leasemill.store.http.through_httpx import ProxiedCalls, WaitingCalls, has_proxy, trusted
from leasemill.store.sources import Entropy
from leasemill.wire.codec import encode_request
from leasemill.wire.expired import EXPIRED, LISTENS
from leasemill.wire.expired import read as read_expired
from leasemill.wire.routes import BY_COMMAND

ANSWER_S: Final = 60.0
"""The longest a server may take over a command, waiting it was asked to do not counted."""
HEADERS: Final = {"user-agent": "leasemill", "accept": "application/json", "content-type": "application/json"}

AnswerT = TypeVar("AnswerT")


class HttpClient:
    """Of one server. `ask` is for threads, `ask_waiting` for one event loop."""

    def __init__(self, address: ServerAddress, entropy: Entropy, expiries: Expiries) -> None:
        self._address = address
        self._entropy = entropy
        self._expiries = expiries
        self._token = address.current_token()
        self._tls = trusted() if address.base.startswith("https:") else None
        self._open()

    def _open(self) -> None:
        self._closed = threading.Event()
        base = self._address.base
        self._calls: DirectCalls | ProxiedCalls = (
            ProxiedCalls(base, ANSWER_S) if has_proxy(base) else DirectCalls(origin_of(base, self._tls), ANSWER_S)
        )
        self._waiting_calls: WaitingCalls | None = None

    def after_fork(self) -> None:
        """In the child, before anything else."""
        was_closed = self._closed.is_set()
        self._calls.abandon()
        self._open()
        if was_closed:
            self._closed.set()

    def ask(self, command: Command[AnswerT]) -> AnswerT:
        route = BY_COMMAND[type(command)]
        body, attempts = encode_request(route, command), self._attempts(command)
        while True:
            if self._closed.is_set():
                raise self.closed()
            try:
                response = self._calls.post(route.path, self._headers(), body)
            except CallFailed as error:
                if self._closed.is_set():
                    raise self.closed() from None
                self._closed.wait(attempts.after_error(error))
                continue
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
        if self._waiting_calls is None:
            self._waiting_calls = WaitingCalls(self._address.base, ANSWER_S)
        route = BY_COMMAND[type(command)]
        body, attempts = encode_request(route, command), self._attempts(command)
        while True:
            try:
                response = await self._waiting_calls.post(route.path, self._headers(), body, wait_s)
            except CallFailed as error:
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
        self._calls.close()

    async def close_waiting(self) -> None:
        if self._waiting_calls is not None:
            await self._waiting_calls.close()

    def closed(self) -> Unavailable:
        return Unavailable(f"this store, {self._address.base}, is closed; open another")

    def _attempts(self, command: Command[Any]) -> Attempts:
        return Attempts(self._address.base, BY_COMMAND[type(command)], self._entropy.jitter())

    def _headers(self) -> dict[str, str]:
        headers = HEADERS.copy()
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if self._expiries.listeners:
            headers[LISTENS] = "1"
        return headers

    def _noted(self, response: Response) -> Answered:
        if EXPIRED in response.headers:
            self._expiries.notify(read_expired(response.headers[EXPIRED]))
        return answered_by(response.status, response.headers, response.body)

    def _has_new_token(self) -> bool:
        before, self._token = self._token, self._address.current_token()
        return self._token != before
