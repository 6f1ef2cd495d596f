"""What a commit with a user's write costs: a job that writes one row in its commit, beside a bare loop of psycopg.

    python -m benchmarks.postgres_peers.commits worker|bare URL COUNT

The bare loop does the same two writes in one transaction, the user's row and a marker's update, on as many connections
as the worker has slots.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator

import psycopg

from benchmarks.postgres_peers.peer import reply
from leasemill import App, Context, Worker

SLOTS = 10
INSERT = "insert into entries (account, cents) values (%s, %s)"
MARK = "update markers set committed_at = clock_timestamp() where number = %s and committed_at is null"


def prepare(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists entries (account text, cents int8)")
        connection.execute("create table if not exists markers (number int8 primary key, committed_at timestamptz)")
        connection.execute("insert into markers select number from generate_series(1, %s) as number", [count])
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")


def worker(url: str, count: int) -> float:
    app = App(url)

    @app.job
    async def enter(ctx: Context, account: str, cents: int) -> None:
        async with ctx.commit() as tx:
            await tx.execute(INSERT, [account, cents])

    enter.enqueue_many(enter.call("a1", 500) for _ in range(count))
    prepare(url, count)
    began = time.perf_counter()
    Worker(app, concurrency=SLOTS, drain=True).run_sync()
    took_s = time.perf_counter() - began
    app.close()
    return took_s


async def bare(url: str, count: int) -> float:
    prepare(url, count)
    connections = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(SLOTS)]
    numbers = iter(range(1, count + 1))

    async def loop(connection: psycopg.AsyncConnection[tuple[object, ...]], left: Iterator[int]) -> None:
        for number in left:
            async with connection.transaction():
                await connection.execute(INSERT, ["a1", 500])
                await connection.execute(MARK, [number])

    began = time.perf_counter()
    await asyncio.gather(*(loop(connection, numbers) for connection in connections))
    took_s = time.perf_counter() - began
    for connection in connections:
        await connection.close()
    return took_s


def check(url: str, count: int) -> None:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from entries").fetchone()
    if row != (count,):
        raise SystemExit(f"{row} rows were written, not {count}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    part, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seconds = worker(url, count) if part == "worker" else asyncio.run(bare(url, count))
    check(url, count)
    reply(seconds=seconds)
