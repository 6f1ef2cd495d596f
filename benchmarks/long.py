"""Does PostgreSQL get slower as jobs that have ended pile up?

    python -m benchmarks.long [--jobs 10000000] [--batches 10]

One database. Batch after batch is enqueued and drained by a worker process of its own, and everything is kept. Each
drain begins after a checkpoint, so that all pay alike for the first change of a page; vacuum comes by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final, LiteralString, NamedTuple

import psycopg

from benchmarks.children import child, server
from benchmarks.postgres_peers.leasemill import migrated
from benchmarks.pruning import drain, enqueue
from benchmarks.report import Bar, finish, table
from leasemill.store.postgres.driver.url import parse_url

JOBS: Final = 10_000_000
BATCHES: Final = 10
SCHEMA: Final = "leasemill_bench_long"
TABLES: Final = ("jobs", "executions", "finished", "ready", "leases", "requests")
SIZES: Final[LiteralString] = """
    select relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup from pg_stat_user_tables
    where schemaname = %s
"""


class Size(NamedTuple):
    """Of one table: bytes, and rows that are dead."""

    heap: int
    indexes: int
    dead_rows: int


class Batch(NamedTuple):
    enqueue_rate: float
    drain_rate: float
    sizes: dict[str, Size]

    def total(self, field: int) -> int:
        return sum(size[field] for size in self.sizes.values())


def measured(url: str, jobs: int, batches: int) -> list[Batch]:
    """On the database of this URL, in a schema of its own."""
    conninfo, _ = parse_url(url)
    store = f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}&retain_count={10 * jobs}&retain_for_s=31536000"
    found: list[Batch] = []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
        child(migrated, store)
        try:
            for number in range(batches):
                found.append(one_batch(connection, store, jobs // batches))
                log(f"batch {number + 1} of {batches}: {found[-1].drain_rate:,.0f} jobs/s")
        finally:
            connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
    return found


def one_batch(connection: psycopg.Connection[Any], store: str, jobs: int) -> Batch:
    enqueue_s = child(seconds_to_enqueue, store, jobs)
    connection.execute("checkpoint")
    drain_rate, _ = child(drain, store, jobs)
    rows = connection.execute(SIZES, [SCHEMA]).fetchall()
    return Batch(jobs / enqueue_s, drain_rate, {name: Size(*size) for name, *size in rows})


def seconds_to_enqueue(url: str, jobs: int) -> float:
    began = time.perf_counter()
    enqueue(url, jobs)
    return time.perf_counter() - began


def show(found: list[Batch], jobs: int) -> None:
    table(
        f"{jobs:,} jobs through PostgreSQL in {len(found)} batches, all kept",
        ("ended before", "enqueue/s", "drain/s", "of the first", "tables MB", "indexes MB", "dead rows"),
        [
            (
                f"{number * (jobs // len(found)):,}",
                f"{batch.enqueue_rate:,.0f}",
                f"{batch.drain_rate:,.0f}",
                f"{batch.drain_rate / found[0].drain_rate:.2f}",
                f"{batch.total(0) / 1e6:,.0f}",
                f"{batch.total(1) / 1e6:,.0f}",
                f"{batch.total(2):,}",
            )
            for number, batch in enumerate(found)
        ],
    )
    table(
        "in the end",
        ("", "table MB", "indexes MB", "bytes for each job", "dead rows"),
        [
            (
                name,
                f"{size.heap / 1e6:,.1f}",
                f"{size.indexes / 1e6:,.1f}",
                f"{(size.heap + size.indexes) / jobs:,.0f}",
                f"{size.dead_rows:,}",
            )
            for name, size in found[-1].sizes.items()
            if name in TABLES
        ],
    )


def bars(found: list[Batch]) -> list[Bar]:
    return [Bar("drain of the last batch: of the first's rate", found[-1].drain_rate / found[0].drain_rate, 0.85)]


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long", description="many jobs through PostgreSQL, kept")
    parser.add_argument("--jobs", type=int, default=JOBS, help="in all batches together")
    parser.add_argument("--batches", type=int, default=BATCHES)
    chosen = parser.parse_args()
    if chosen.batches < 2 or chosen.jobs < 100 * chosen.batches:
        parser.error("at least two batches, of at least a hundred jobs")
    with server() as url:
        found = measured(url, chosen.jobs, chosen.batches)
    show(found, chosen.jobs)
    finish(bars(found))


if __name__ == "__main__":
    main()
