"""PgQueuer: asyncpg and uvloop, as its own benchmark has it. A finished job is deleted and logged, by id alone."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

from benchmarks.postgres_peers.peer import Send, Tally, arguments, batches, run

ENQUEUE_BATCH = 10_000
BATCH = 1_000


class Pgqueuer:
    async def install(self, url: str) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(url))).install()

    async def bulk(self, url: str, count: int) -> float:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
        began = time.perf_counter()
        for numbers in batches(list(range(count)), ENQUEUE_BATCH):
            size = len(numbers)
            await queries.enqueue(["noop"] * size, [json.dumps(arguments()).encode() for _ in numbers], [0] * size)
        return time.perf_counter() - began

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Send]:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))

        async def send(given: dict[str, Any]) -> None:
            await queries.enqueue("noop", json.dumps(given).encode())

        yield send

    async def work(self, url: str, tally: Tally) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            assert job.payload is not None
            tally.called(json.loads(job.payload)["sent_ns"])

        tally.begin()
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    uvloop.install()
    run(Pgqueuer())
