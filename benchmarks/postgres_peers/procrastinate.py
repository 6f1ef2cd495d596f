"""Procrastinate: async tasks. Keeps finished jobs and their events; a finish names the job alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from benchmarks.postgres_peers.peer import Send, Tally, arguments, batches, run

ENQUEUE_BATCH = 1_000
CONCURRENCY = 10


def declared(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=CONCURRENCY + 4))


class Procrastinate:
    async def install(self, url: str) -> None:
        async with declared(url).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def bulk(self, url: str, count: int) -> float:
        async with declared(url).open_async() as app:
            deferrer = app.configure_task("noop")
            began = time.perf_counter()
            for numbers in batches(list(range(count)), ENQUEUE_BATCH):
                await deferrer.batch_defer_async(*(arguments() for _ in numbers))
            return time.perf_counter() - began

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Send]:
        async with declared(url).open_async() as app:
            deferrer = app.configure_task("noop")
            yield lambda given: deferrer.defer_async(**given)

    async def work(self, url: str, tally: Tally) -> None:
        app = declared(url)

        @app.task(name="noop")
        async def noop(account: str, cents: int, sent_ns: int) -> None:
            tally.called(sent_ns)

        async with app.open_async():
            tally.begin()
            await app.run_worker_async(concurrency=CONCURRENCY, fetch_job_polling_interval=1)


if __name__ == "__main__":
    run(Procrastinate())
