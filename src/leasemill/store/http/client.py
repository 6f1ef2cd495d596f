"""Asking a server: one command, one POST, and what to do when no answer comes.

A command is sent again only where that is safe: it was never sent, or it does the same when it is done twice. Otherwise,
and when the server stays away, it is Unavailable: unknown whether it happened.
"""

from __future__ import annotations

import asyncio
import os
import time
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from leasemill import __version__
from leasemill.errors import Refused, Unavailable
from leasemill.kernel.command import Command
from leasemill.store.backoff import backoff_s
from leasemill.store.http.address import ServerAddress
from leasemill.store.sources import Entropy
from leasemill.wire.codec import decode_answer, encode_request
from leasemill.wire.problems import Problem, raise_error, read_problem
from leasemill.wire.routes import BY_COMMAND, Route

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
"""The longest a server may take over a command, waiting it was asked to do not counted."""
PATIENCE_S: Final = 5.0
"""How long a server that is restarted is waited for."""
IDLE_S: Final = 30.0
"""Less than a server keeps an idle connection."""
NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
AWAY: Final = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}


class Answered(NamedTuple):
    status: int
    problem: Problem | None
    body: bytes


class HttpClient:
    """Used from one event loop."""

    def __init__(self, address: ServerAddress, entropy: Entropy) -> None:
        self._address = address
        self._entropy = entropy
        self._token = address.current_token()
        self._client: httpx.AsyncClient | None = None
        self._pid = os.getpid()

    async def ask(self, command: Command[Any], wait_s: float = 0.0) -> Any:
        """The server's answer to a command; `wait_s`: how long the server was asked to wait."""
        route = BY_COMMAND[type(command)]
        body, until, failures = encode_request(route, command), time.monotonic() + PATIENCE_S, 0
        while True:
            is_safe = True
            try:
                answered = await self._post(route, body, wait_s + ANSWER_S)
            except NOT_SENT as error:
                why = f"cannot be reached: {_words(error)}"
            except httpx.TransportError as error:
                why, is_safe = f"did not answer: {_words(error)}", route.is_repeatable
            else:
                if answered.problem is None and answered.status in AWAY:
                    why, is_safe = f"is away (status {answered.status})", route.is_repeatable
                elif answered.status == HTTPStatus.TOO_MANY_REQUESTS:
                    why = "takes no more requests for now"
                elif answered.status == HTTPStatus.UNAUTHORIZED and self._has_new_token():
                    continue
                else:
                    return self._read(route, answered)
            failures += 1
            if not is_safe or time.monotonic() >= until:
                raise Unavailable(f"the server at {self._address.base} {why}")
            await asyncio.sleep(backoff_s(failures, self._entropy.jitter()))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, route: Route, body: bytes, read_s: float) -> Answered:
        if self._client is None or self._pid != os.getpid():  # a parent's connections are not a child's
            self._client, self._pid = _new_client(), os.getpid()
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(CONNECT_S, read=read_s, write=read_s, pool=read_s)
        response = await self._client.post(
            self._address.base + route.path, content=body, headers=headers, timeout=timeout
        )
        if response.status_code == HTTPStatus.OK:
            return Answered(response.status_code, None, response.content)
        found = read_problem(response.headers.get("content-type", ""), response.content)
        return Answered(response.status_code, found, response.content)

    def _read(self, route: Route, answered: Answered) -> Any:
        found = answered.problem
        try:
            if answered.status == HTTPStatus.OK:
                return decode_answer(route, answered.body)
            if found is not None and isinstance(found.answer, msgspec.Raw):
                return decode_answer(route, bytes(found.answer))
        except msgspec.DecodeError as error:
            raise Refused(
                f"the answer of {self._address.base} to {route.name} is not one of Leasemill {__version__}: {error}"
            ) from None
        if found is None:
            raise Refused(
                f"{self._address.base} answered {route.name} with status {answered.status}, and not as a Leasemill "
                "server does: check the URL"
            )
        if route.is_lookup and found.reason == "not_found":
            return None
        raise_error(found)

    def _has_new_token(self) -> bool:
        before, self._token = self._token, self._address.current_token()
        return self._token != before


def _new_client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_S)
    agent = {"user-agent": f"leasemill/{__version__}", "accept": "application/json"}
    return httpx.AsyncClient(limits=limits, headers=agent, follow_redirects=False)


def _words(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
