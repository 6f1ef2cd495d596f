"""Ten viewers of the overview, in one process that steps aside: what a browser sends, and next to nothing beside it."""

from __future__ import annotations

import asyncio
import os
from asyncio import StreamReader, StreamWriter
from multiprocessing.connection import Connection
from typing import Any

import httpx

VIEWERS = 10
LEAST_S = 0.9
LAST = 19


class Viewer:
    """Follows the events and fetches the overview when one comes, as the page's script does."""

    def __init__(self, client: httpx.Client, sent: Any) -> None:
        self._sent = sent
        cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        self._host, self._port = client.base_url.host, client.base_url.port
        self._headers = f"Host: {self._host}:{self._port}\r\nCookie: {cookies}\r\n"
        self._fetching: tuple[StreamReader, StreamWriter] | None = None

    async def look(self) -> None:
        events, _ = await self._ask("/events")
        await self._fetch()
        while line := await events.readline():
            if line.startswith(b"data:"):
                await self._fetch()
                await asyncio.sleep(LEAST_S)
        raise AssertionError("the server has ended the events")

    async def _fetch(self) -> None:
        try:
            self._fetching = await self._ask("/", "Leasemill-Part: 1\r\n", self._fetching)
        except (asyncio.IncompleteReadError, ConnectionError):  # it was not used for a while
            self._fetching = await self._ask("/", "Leasemill-Part: 1\r\n")
        self._sent.value += 1

    async def _ask(
        self, path: str, more: str = "", connection: tuple[StreamReader, StreamWriter] | None = None
    ) -> tuple[StreamReader, StreamWriter]:
        reader, writer = connection or await asyncio.open_connection(self._host, self._port)
        writer.write(f"GET {path} HTTP/1.1\r\n{self._headers}{more}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        _, is_sized, rest = head.partition(b"content-length:")
        if is_sized:
            await reader.readexactly(int(rest.partition(b"\r\n")[0]))
        return reader, writer


def view(pipe: Connection, link: str, sent: Any) -> None:
    """`sent` counts overviews. Sends a message when the overview has counts, and looks until it is asked to end."""
    os.nice(LAST)
    client = httpx.Client(base_url=link.partition("/sign-in")[0], timeout=60)
    client.get(link)
    while "Counting…" in client.get("/").text:
        pass
    pipe.send("looks")
    asyncio.run(_look(pipe, client, sent))


async def _look(pipe: Connection, client: httpx.Client, sent: Any) -> None:
    looking = asyncio.gather(*(Viewer(client, sent).look() for _ in range(VIEWERS)))
    ending = asyncio.create_task(asyncio.to_thread(pipe.recv))
    await asyncio.wait((looking, ending), return_when=asyncio.FIRST_COMPLETED)
    if looking.done():
        looking.result()
    os._exit(0)
