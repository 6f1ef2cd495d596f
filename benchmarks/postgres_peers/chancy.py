"""Chancy: its async executor, many slots, eager polling. Keeps finished jobs; an update is fenced by its claim."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Queue, Worker

from benchmarks.postgres_peers.peer import Send, Tally, arguments, run

ENQUEUE_BATCH = 1_000
SLOTS = 1_000
OUTGOING_S = 0.05

_tallies: list[Tally] = []


async def noop(*, account: str, cents: int, sent_ns: int) -> None:
    _tallies[0].called(sent_ns)


def job(given: dict[str, Any]) -> Job:
    return Job(func="benchmarks.postgres_peers.chancy.noop", queue="work", kwargs=given)


class ChancyPeer:
    async def install(self, url: str) -> None:
        async with Chancy(url) as app:
            await app.migrate()
            await app.declare(
                Queue(
                    "work",
                    concurrency=SLOTS,
                    executor=Chancy.Executor.Async,
                    polling_interval=1,
                    eager_polling=True,
                )
            )

    async def bulk(self, url: str, count: int) -> float:
        async with Chancy(url) as app:
            await app.get_all_queues()  # connected
            began = time.perf_counter()
            jobs = [job(arguments()) for _ in range(count)]
            async for _ in app.push_many(jobs, batch_size=ENQUEUE_BATCH):
                pass
            return time.perf_counter() - began

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Send]:
        async with Chancy(url) as app:
            yield lambda given: app.push(job(given))

    async def work(self, url: str, tally: Tally) -> None:
        _tallies.append(tally)
        async with Chancy(url) as app:
            tally.begin()
            worker = Worker(app)
            worker.send_outgoing_interval = OUTGOING_S
            async with worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    sys.modules["benchmarks.postgres_peers.chancy"] = sys.modules[__name__]  # by that name its worker finds the handler
    run(ChancyPeer())
