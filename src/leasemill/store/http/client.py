"""Asking a server: one command, one POST. Commands block, in their callers' threads; waits are in an event loop.

Both have connections that are kept. A forked child has its own; what must never happen here is that it uses or shuts
down those of its parent, or waits for a lock that a thread of its parent held.
"""

from __future__ import annotations

import asyncio
import threading
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel.command import Command
from leasemill.store.http.address import ServerAddress
from leasemill.store.http.connection import DirectCalls, Response, origin_of
from leasemill.store.http.httpx_calls import ProxiedCalls, WaitingCalls, has_proxy, trusted
from leasemill.store.http.retry_policy import Answered, Attempts, CallFailed, answered_by
from leasemill.store.notifications import Expiries
from leasemill.store.system import Entropy
from leasemill.wire.codec import encode_request
from leasemill.wire.expired import EXPIRED, LISTENS
from leasemill.wire.expired import read as read_expired
from leasemill.wire.routes import BY_COMMAND, Route

ANSWER_S: Final = 60.0
"""The longest a server may take over a command, not counting the wait that the command asks for."""
HEADERS: Final = {"user-agent": "leasemill", "accept": "application/json", "content-type": "application/json"}

AnswerT = TypeVar("AnswerT")


class ClientCall(NamedTuple):
    """A command as it is sent, and how often it may be sent."""

    route: Route
    body: bytes
    attempts: Attempts


class Posted(NamedTuple):
    """The result of one attempt, and the token with which it was sent."""

    token: str | None
    reply: Answered | CallFailed

    @property
    def answered(self) -> Answered:
        assert isinstance(self.reply, Answered)
        return self.reply


class HttpClient:
    """The calls to one server. `ask` is for threads, `ask_waiting` for one event loop."""

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
        """Open connections of its own in a forked child, before anything else."""
        was_closed = self._closed.is_set()
        self._calls.abandon()
        self._open()
        if was_closed:
            self._closed.set()

    def call(self, command: Command[Any]) -> ClientCall:
        route = BY_COMMAND[type(command)]
        return ClientCall(
            route, encode_request(route, command), Attempts(self._address.base, route, self._entropy.jitter())
        )

    def ask(self, command: Command[AnswerT]) -> AnswerT:
        answer: AnswerT = self.finish(self.call(command))
        return answer

    def finish(self, call: ClientCall, posted: Posted | None = None) -> Any:
        """Return the call's answer. `posted` is the result of its first attempt; None if there was none."""
        if posted is None:
            posted = self.post(call.route, call.body)
        while (pause_s := self._pause_s(call, posted)) is not None:
            self._closed.wait(pause_s)
            posted = self.post(call.route, call.body)
        return call.attempts.read(posted.answered)

    def post(self, route: Route, body: bytes) -> Posted:
        """Make one attempt."""
        if self._closed.is_set():
            raise self.closed()
        token = self._token
        try:
            response = self._calls.post(route.path, self._headers(token), body)
        except CallFailed as error:
            return Posted(token, error)
        return Posted(token, self._noted(response))

    async def ask_waiting(self, command: Command[AnswerT], wait_s: float) -> AnswerT:
        """Return the answer of a command over which the server may take `wait_s`."""
        if self._waiting_calls is None:
            self._waiting_calls = WaitingCalls(self._address.base, ANSWER_S)
        call = self.call(command)
        posted = await self._post_waiting(self._waiting_calls, call, wait_s)
        while (pause_s := self._pause_s(call, posted)) is not None:
            await asyncio.sleep(pause_s)
            posted = await self._post_waiting(self._waiting_calls, call, wait_s)
        answer: AnswerT = call.attempts.read(posted.answered)
        return answer

    async def _post_waiting(self, calls: WaitingCalls, call: ClientCall, wait_s: float) -> Posted:
        token = self._token
        try:
            response = await calls.post(call.route.path, self._headers(token), call.body, wait_s)
        except CallFailed as error:
            return Posted(token, error)
        return Posted(token, self._noted(response))

    def _pause_s(self, call: ClientCall, posted: Posted) -> float | None:
        """Return how long to wait before the next attempt; None if this was the last one."""
        reply = posted.reply
        if isinstance(reply, CallFailed):
            if self._closed.is_set():
                raise self.closed()
            return call.attempts.after_error(reply)
        if reply.status == HTTPStatus.UNAUTHORIZED and self._has_other_token(posted.token):
            return 0.0
        return call.attempts.after(reply)

    def close(self) -> None:
        self._closed.set()
        self._calls.close()

    async def close_waiting(self) -> None:
        if self._waiting_calls is not None:
            await self._waiting_calls.close()

    def closed(self) -> Unavailable:
        return Unavailable(f"this store, {self._address.base}, is closed; open another")

    def _headers(self, token: str | None) -> dict[str, str]:
        headers = HEADERS.copy()
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if self._expiries.listeners:
            headers[LISTENS] = "1"
        return headers

    def _noted(self, response: Response) -> Answered:
        if EXPIRED in response.headers:
            self._expiries.notify(read_expired(response.headers[EXPIRED]))
        return answered_by(response.status, response.headers, response.body)

    def _has_other_token(self, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused; another caller may have read it already."""
        self._token = self._address.current_token()
        return self._token != refused
