"""Awa: a Rust engine under Python handlers. COPY into its queue storage; keeps finished jobs, fences by run lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.postgres_peers.peer import Send, Tally, arguments, batches, run

ENQUEUE_BATCH = 10_000
WORKERS = 1_024


@dataclass
class Noop:
    account: str
    cents: int
    sent_ns: int


class Awa:
    async def install(self, url: str) -> None:
        async with awa.AsyncClient(url) as client:
            await client.migrate()
            await client.install_queue_storage()

    async def bulk(self, url: str, count: int) -> float:
        async with awa.AsyncClient(url) as client:
            await client.storage_status()  # connected
            began = time.perf_counter()
            for numbers in batches(list(range(count)), ENQUEUE_BATCH):
                await client.enqueue_many_copy([Noop(**arguments()) for _ in numbers], queue="work")
            return time.perf_counter() - began

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Send]:
        async with awa.AsyncClient(url) as client:

            async def send(given: dict[str, Any]) -> None:
                await client.insert(Noop(**given), queue="work")

            yield send

    async def work(self, url: str, tally: Tally) -> None:
        client = awa.AsyncClient(url)

        @client.task(Noop, queue="work")
        async def noop(job: awa.Job[Noop]) -> None:
            tally.called(job.args.sent_ns)

        tally.begin()
        await client.start([{"name": "work", "max_workers": WORKERS}], poll_interval_ms=50)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(Awa())
