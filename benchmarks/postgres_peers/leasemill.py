"""Leasemill itself: the App and the Worker as they come."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.postgres_peers.peer import Send, Tally, arguments, reply, run
from leasemill import App, Worker
from leasemill.api.job import JobType
from leasemill.store.postgres.store import PostgresStore

_LOADED = PostgresStore
"""The others load their drivers before they are ready; an App loads its store when it opens it."""

IN_LANE = 10
CALLERS = 32


def declared(url: str, tally: Tally | None = None) -> tuple[App, JobType[..., Any], JobType[..., Any]]:
    app = App(url)

    @app.job
    async def noop(account: str, cents: int, sent_ns: int) -> None:
        assert tally is not None
        tally.called(sent_ns)

    @app.job(lane="account")
    async def laned(account: str, cents: int, sent_ns: int) -> None:
        assert tally is not None
        tally.called(sent_ns)

    return app, noop, laned


def migrated(url: str) -> None:
    with App(f"{url}{'&' if '?' in url else '?'}auto_migrate=1") as app:
        app.store.totals()


class Leasemill:
    async def install(self, url: str) -> None:
        await asyncio.to_thread(migrated, url)

    async def bulk(self, url: str, count: int) -> float:
        app, noop, _ = declared(url)
        app.store.totals()  # connected
        began = time.perf_counter()
        await noop.aenqueue_many(noop.call(**arguments()) for _ in range(count))
        return time.perf_counter() - began

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Send]:
        app, noop, _ = declared(url)
        with app:
            app.store.totals()  # connected
            yield lambda given: noop.aenqueue(**given)

    async def work(self, url: str, tally: Tally) -> None:
        app, _, _ = declared(url, tally)
        worker = Worker(app)
        tally.begin()
        await worker.run()


def lanes(url: str, count: int) -> None:
    """As `bulk`, but ten in each lane, round after round."""
    in_lanes(url, count, max(1, count // IN_LANE))


def in_lanes(url: str, count: int, width: int) -> None:
    with declared(url)[0] as app:
        laned = app.jobs["laned"]
        laned.enqueue_many(laned.call(f"a{number % width}", 500, 0) for number in range(count))


async def by_callers(url: str, count: int) -> float:
    """As `single`, but by many callers at a time, as in a web server."""
    async with Leasemill().producer(url) as send:

        async def some() -> None:
            for _ in range(count // CALLERS):
                await send(arguments())

        await send(arguments())  # connected, prepared
        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(CALLERS)))
        return time.perf_counter() - began


def blocked(url: str, count: int) -> None:
    """Jobs that wait in one lane, behind a head that waits for tomorrow."""
    with declared(url)[0] as app:
        laned = app.jobs["laned"]
        laned.options(delay=timedelta(days=1)).enqueue("blocked", 500, 0)
        laned.enqueue_many(laned.call("blocked", 500, 0) for _ in range(count))


def future(url: str, count: int) -> None:
    with declared(url)[0] as app:
        later = app.jobs["noop"].options(delay=timedelta(days=1))
        later.enqueue_many(later.call(**arguments()) for _ in range(count))


if __name__ == "__main__":
    parts: dict[str, Callable[[str, int], None]] = {
        "lanes": lanes,
        "one-lane": partial(in_lanes, width=1),
        "ten-lanes": partial(in_lanes, width=10),
        "blocked": blocked,
        "future": future,
    }
    special = parts.get(sys.argv[1])
    if sys.argv[1] == "callers":
        reply(seconds=asyncio.run(by_callers(sys.argv[2], int(sys.argv[3]))))
    elif special is None:
        run(Leasemill())
    else:
        special(sys.argv[2], int(sys.argv[3]))
        reply()
