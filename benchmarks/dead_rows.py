"""What do the rows cost that PostgreSQL keeps while somebody holds a snapshot?

    python -m benchmarks.dead_rows [--dead 100000] [--seconds 60] [--rate 800]

First the short claim (one job, of ten asked for), the totals and the depth of queues, with and without dead rows of
ready and of leases, in a process that has not claimed before, a lease's time after the jobs have ended. Then a worker
that keeps up with a producer under a held snapshot: the time from before the enqueue to the handler, at the beginning
and at the end.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Final, NamedTuple

import psycopg

from benchmarks.report import Bar, finish, table
from leasemill import App, Worker
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.system import SystemEntropy
from leasemill.testing.postgres import PostgresServer

SPAWN: Final = multiprocessing.get_context("spawn")
ENTROPY: Final = SystemEntropy()
QUEUE: Final = "work"
BATCH: Final = 1_000
ROUNDS: Final = 200
TICK_S: Final = 0.01
WINDOW_S: Final = 10.0
REAPED_S: Final = 50.0
"""How long a reaper is at work after the jobs have ended: until their leases would have expired."""
DEAD: Final = 100_000
SECONDS: Final = 60.0
RATE: Final = 800


class Reads(NamedTuple):
    """Milliseconds, medians."""

    claim: float
    totals: float
    queues: float


class DeadRows(NamedTuple):
    dead: int
    without: Reads
    beside: Reads
    rate: int
    windows_ms: list[float]
    """The median time from enqueue to handler of each ten seconds."""


def measured(url: str, dead: int = DEAD, seconds: float = SECONDS, rate: int = RATE) -> DeadRows:
    """On the database of this URL, in schemas of its own."""
    urls = [_in_schema(url, schema) for schema in ("without", "beside")]
    _drain(urls[0], dead, reaps=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
    with snapshot(url):
        _drain(urls[1], dead, reaps=True)
        without, beside = _child(urls)
    with snapshot(url):
        windows = _kept_up(_in_schema(url, "keeps_up"), seconds, rate)
    return DeadRows(dead, without, beside, rate, windows)


def _in_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}&auto_migrate=1"


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Somebody who has looked, and does not end their transaction."""
    with psycopg.connect(url) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from pg_class")
        yield
        other.rollback()


# With and without --------------------------------------------------------------------------------------------------


def _drain(url: str, count: int, *, reaps: bool) -> None:
    with PostgresStore(url) as store:
        for _ in range(0, count, BATCH):
            store.enqueue([JobSpec(ENTROPY.new_id(), QUEUE, "kind") for _ in range(BATCH)])
        while leases := store.claim("worker", [QUEUE], BATCH):
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        until = time.monotonic() + (REAPED_S if reaps else 0)
        while time.monotonic() < until:
            store.expire(BATCH)
            time.sleep(1.0)


def _child(urls: list[str]) -> tuple[Reads, Reads]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_read, args=(urls, theirs))
    process.start()
    without, beside = ours.recv()
    process.join()
    return without, beside


def _read(urls: list[str], pipe: Connection) -> None:
    """In turn, so that noise meets both alike."""
    stores = [PostgresStore(url) for url in urls]
    times: list[list[list[float]]] = [[[], [], []] for _ in stores]
    for _ in range(ROUNDS):
        for store, (claims, totals, queues) in zip(stores, times, strict=True):
            store.enqueue([JobSpec(ENTROPY.new_id(), QUEUE, "kind")])
            began = time.perf_counter()
            (lease,) = store.claim("worker", [QUEUE], 10)
            claims.append(time.perf_counter() - began)
            store.ack([c.AckReport(lease.job.id, lease.token)])
            totals.append(_seconds(store.totals))
            queues.append(_seconds(store.queues))
    pipe.send([Reads(*(median(one) * 1_000 for one in of_store)) for of_store in times])
    for store in stores:
        store.close()


def _seconds(read: Callable[[], object]) -> float:
    began = time.perf_counter()
    read()
    return time.perf_counter() - began


# A worker that keeps up ----------------------------------------------------------------------------------------------


def _kept_up(url: str, seconds: float, rate: int) -> list[float]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_work, args=(url, theirs))
    process.start()
    ours.recv()
    store = PostgresStore(url)
    began = time.time()
    sent, elapsed = 0, 0.0
    while (elapsed := time.time() - began) < seconds:
        due = int(elapsed * rate) - sent
        if due:
            payload = f'{{"sent_at":{time.time()}}}'.encode()
            store.enqueue([JobSpec(ENTROPY.new_id(), QUEUE, "arrive", payload) for _ in range(due)])
            sent += due
        time.sleep(TICK_S)
    ours.send("end")
    waits: list[tuple[float, float]] = ours.recv()
    process.join()
    store.close()
    windows = [
        [wait for at, wait in waits if first <= at - began < first + WINDOW_S]
        for first in range(0, int(seconds), int(WINDOW_S))
    ]
    return [median(window) * 1_000 for window in windows if window]


def _work(url: str, pipe: Connection) -> None:
    logging.disable(logging.WARNING)
    app = App(url)
    waits: list[tuple[float, float]] = []

    @app.job(queue=QUEUE, name="arrive")
    async def arrive(sent_at: float) -> None:
        waits.append((sent_at, time.time() - sent_at))

    worker = Worker(app, [QUEUE], handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    pipe.send("works")
    pipe.recv()
    time.sleep(1.0)
    pipe.send(waits)
    worker.stop(now=True)
    thread.join()
    os._exit(0)


# Report --------------------------------------------------------------------------------------------------------------


def show(found: DeadRows) -> None:
    table(
        f"{found.dead:,} dead rows in ready and in leases: milliseconds, medians",
        ("", "without", "with", "ratio"),
        [
            (name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}")
            for name, before, after in zip(
                ("claim of 1 job, limit 10", "totals", "queues"), found.without, found.beside, strict=True
            )
        ],
    )
    table(
        f"a worker that keeps up with {found.rate} jobs/s under a held snapshot",
        ("from", "enqueue to handler p50, ms"),
        [(f"{number * WINDOW_S:.0f} s", f"{one:.1f}") for number, one in enumerate(found.windows_ms)],
    )


def bars(found: DeadRows) -> list[Bar]:
    return [
        Bar("dead rows: short claim, times without", found.beside.claim / found.without.claim, 1.5, at_least=False),
        Bar("dead rows: totals, times without", found.beside.totals / found.without.totals, 1.5, at_least=False),
        Bar(
            "dead rows: enqueue to handler p50, last window to first",
            found.windows_ms[-1] / found.windows_ms[0],
            1.5,
            at_least=False,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_rows", description=__doc__)
    parser.add_argument("--dead", type=int, default=DEAD)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=int, default=RATE)
    chosen = parser.parse_args()
    with PostgresServer(settings={"shared_buffers": "512MB", "max_wal_size": "8GB"}) as server:
        found = measured(server.url(), chosen.dead, chosen.seconds, chosen.rate)
    show(found)
    finish(bars(found))


if __name__ == "__main__":
    main()
