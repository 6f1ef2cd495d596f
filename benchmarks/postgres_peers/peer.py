"""What the benchmark asks of a system: one program for each, so that every part runs in a process of its own.

    python -m benchmarks.postgres_peers.NAME PART URL COUNT

`install` makes its tables. `bulk` enqueues COUNT jobs, `single` the same one at a time, `paced` with pauses between
them. `work` replies when it is ready, waits for a line, runs the system's own worker, and replies when handlers were
called COUNT times; it is killed when the benchmark has seen in the database that all of them are finished. Replies are
lines of JSON. All times are of CLOCK_MONOTONIC, which every process on a machine shares. `peer.mjs`: the same for node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

SAMPLE = 100
"""Calls between two times that are kept."""

PAUSE_S = (0.015, 0.035)
"""Between two jobs of `paced`: uneven, so that it falls into step with nobody's polling."""

Send = Callable[[dict[str, Any]], Awaitable[object]]


def arguments(sent_ns: int = 0) -> dict[str, Any]:
    """The payload of every job: a few fields, and when it was sent where that is measured."""
    return {"account": "a1", "cents": 500, "sent_ns": sent_ns}


class Tally:
    """Counts handler calls, and replies when all were made."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._next_sample = count - SAMPLE
        self._waits_ms: list[float] = []
        self._samples: list[tuple[int, int]] = []
        self._began_ns = 0

    def begin(self) -> None:
        self._began_ns = time.monotonic_ns()

    def called(self, sent_ns: int = 0) -> None:
        """At the start of each handler call."""
        if sent_ns:
            self._waits_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        self._left -= 1
        if self._left <= self._next_sample:
            self._samples.append((self._left, time.monotonic_ns()))
            self._next_sample -= SAMPLE
        if self._left == 0:
            reply(began_ns=self._began_ns, samples=self._samples, waits_ms=self._waits_ms)


class Peer(Protocol):
    async def install(self, url: str) -> None: ...
    async def bulk(self, url: str, count: int) -> float:
        """Enqueue in the fastest way it has; returns seconds, connecting left out."""
        ...

    def producer(self, url: str) -> AbstractAsyncContextManager[Send]:
        """Something that enqueues one job in a call, connected already."""
        ...

    async def work(self, url: str, tally: Tally) -> None:
        """Call `tally.begin` and start the worker; it ends by being killed."""
        ...


def run(peer: Peer) -> None:
    logging.disable(logging.WARNING)
    part, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    match part:
        case "install":
            asyncio.run(peer.install(url))
            reply()
        case "bulk":
            reply(seconds=asyncio.run(peer.bulk(url, count)))
        case "single":
            reply(seconds=asyncio.run(singly(peer, url, count)))
        case "paced":
            asyncio.run(paced(peer, url, count))
            reply()
        case "work":
            reply()
            sys.stdin.readline()
            asyncio.run(peer.work(url, Tally(count)))
        case _:
            raise SystemExit(f"{part} is none of install, bulk, single, paced, work")


async def singly(peer: Peer, url: str, count: int) -> float:
    async with peer.producer(url) as send:
        await send(arguments())  # connected, prepared
        began = time.perf_counter()
        for _ in range(count):
            await send(arguments())
        return time.perf_counter() - began


async def paced(peer: Peer, url: str, count: int) -> None:
    async with peer.producer(url) as send:
        for _ in range(count):
            await asyncio.sleep(random.uniform(*PAUSE_S))
            await send(arguments(time.monotonic_ns()))


def reply(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def batches(items: list[Any], size: int) -> list[list[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
