"""The body of a request, and whether its sender still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from leasemill.server.exchange import Exchange
from leasemill.wire.problems import Denied, problem

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]


TURNS: Final = 6
"""Turns of the loop from the end of a connection to the task that waits for it: selector, protocol, event, task."""


class CallerGone(Exception):
    """The caller went away before the answer was sent."""


class Caller:
    """The client of a request. After its body, the only message it can send is that it went away."""

    def __init__(self, receive: Receive, exchange: Exchange | None = None) -> None:
        self._receive = receive
        self._exchange = exchange
        self._leaving: asyncio.Task[None] | None = None

    async def body(self, most_bytes: int, announced: str | None, within_s: float) -> bytes:
        """Read the whole body; it is refused as soon as it is too large, or too slow."""
        if announced is not None and announced.isdigit() and int(announced) > most_bytes:
            raise _too_large(most_bytes)
        whole = None if self._exchange is None else self._exchange.take_body()
        if whole is None:
            return await self._received(most_bytes, within_s)
        if len(whole) > most_bytes:
            raise _too_large(most_bytes)
        return whole

    async def _received(self, most_bytes: int, within_s: float) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise CallerGone
                    chunk: bytes = message.get("body", b"")
                    size += len(chunk)
                    if size > most_bytes:
                        raise _too_large(most_bytes)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            raise Denied(
                problem(
                    HTTPStatus.REQUEST_TIMEOUT,
                    "slow_body",
                    f"the body took more than {within_s:g} s to arrive",
                    limit=f"{within_s:g}",
                )
            ) from None

    @property
    def leaving(self) -> asyncio.Task[None]:
        """Done when the caller has gone. Ask for it when the body was read."""
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._gone())
        return self._leaving

    async def is_gone(self) -> bool:
        """Return True if the client has gone by now."""
        leaving = self.leaving
        for _ in range(TURNS):
            if leaving.done():
                break
            await asyncio.sleep(0)
        return leaving.done()

    def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_large(most_bytes: int) -> Denied:
    return Denied(
        problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"the body has more than {most_bytes:,} bytes: send several calls",
            limit=f"{most_bytes}",
        )
    )
