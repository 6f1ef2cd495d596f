"""What does it cost a worker that retention forgets old jobs meanwhile? On PostgreSQL and on `file:`.

As many old jobs as there are jobs to drain, and all of them have to go meanwhile: a store in that state must forget as
fast as jobs end. Beside it the same drain with the same old jobs, which are kept. Both in turn, on copies of one
database or folder; a ratio is of one round.

    python -m benchmarks.pruning [--store postgres] [--jobs 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, LiteralString, NamedTuple
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.children import SETTINGS, child
from benchmarks.disk import folder
from benchmarks.report import Bar, finish, table
from leasemill import App, Worker
from leasemill.kernel.model import JobState
from leasemill.testing.postgres import PostgresServer

JOBS: Final = 1_000_000
FILE_JOBS: Final = 200_000
ROUNDS: Final = 3
BATCH: Final = 2_000
TEMPLATE: Final = "leasemill_bench_prune_template"
COPY: Final = "leasemill_bench_prune"
REAPER: Final = timedelta(seconds=1)
"""Short, so that retention is at work from the beginning of a short drain too."""
SIZES: Final[LiteralString] = """
    select sum(pg_total_relation_size(relid)), sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'leasemill'
"""


class Found(NamedTuple):
    """Of one drain."""

    rate: float
    forgotten: int
    megabytes: float
    dead_rows: int


class Prunes(NamedTuple):
    """Of all rounds: kept, and forgotten meanwhile."""

    jobs: int
    kept: list[Found]
    forgotten: list[Found]

    @property
    def ratio(self) -> float:
        return median(one.rate / other.rate for one, other in zip(self.forgotten, self.kept, strict=True))


# In processes of their own -----------------------------------------------------------------------------------------


def declared(url: str) -> App:
    app = App(url)

    @app.job
    async def noop(account: str, cents: int) -> None:
        pass

    return app


def prepare(url: str, jobs: int) -> None:
    """So many jobs that have ended, and as many that wait."""
    for is_drained in (True, False):
        enqueue(url, jobs)
        if is_drained:
            drain(url, jobs)


def enqueue(url: str, jobs: int) -> None:
    app = declared(url)
    noop = app.jobs["noop"]
    with app:
        for first in range(0, jobs, BATCH):
            noop.enqueue_many(noop.call(account="a1", cents=500) for _ in range(min(BATCH, jobs - first)))


def drain(url: str, jobs: int) -> tuple[float, int]:
    """The rate, and how many succeeded jobs are left."""
    app = declared(url)
    worker = Worker(app, drain=True, reaper_interval=REAPER)
    with app:
        began = time.perf_counter()
        worker.run_sync()
        took_s = time.perf_counter() - began
        left = app.store.totals().counts[JobState.SUCCEEDED]
    assert worker.metrics.succeeded == jobs, worker.metrics
    return jobs / took_s, left


# PostgreSQL --------------------------------------------------------------------------------------------------------


def measured(url: str, jobs: int = JOBS, rounds: int = ROUNDS) -> Prunes:
    """On the server of this URL, in databases of its own."""
    with psycopg.connect(_database(url, "postgres"), autocommit=True) as admin:
        try:
            _make(admin, TEMPLATE, "template1")
            child(prepare, f"{_database(url, TEMPLATE)}?auto_migrate=1&retain_count={10 * jobs}", jobs)
            with psycopg.connect(_database(url, TEMPLATE), autocommit=True) as connection:
                connection.execute("vacuum analyze")
            return in_turn(jobs, 0, rounds, lambda keeps: _on_a_copy(admin, url, jobs, keeps))
        finally:
            for name in (COPY, TEMPLATE):
                _drop(admin, name)


def in_turn(jobs: int, keeps_few: int, rounds: int, measure: Callable[[int], Found]) -> Prunes:
    """Keeping all and keeping few; which comes first changes from round to round."""
    found: dict[int, list[Found]] = {10 * jobs: [], keeps_few: []}
    for number in range(rounds):
        for keeps in list(found) if number % 2 == 0 else list(reversed(found)):
            found[keeps].append(measure(keeps))
    return Prunes(jobs, found[10 * jobs], found[keeps_few])


def _on_a_copy(admin: psycopg.Connection[Any], url: str, jobs: int, keeps: int) -> Found:
    _make(admin, COPY, TEMPLATE)
    admin.execute("checkpoint")
    rate, left = child(drain, f"{_database(url, COPY)}?retain_count={keeps}", jobs)
    with psycopg.connect(_database(url, COPY)) as connection:
        row = connection.execute(SIZES).fetchone()
    assert row is not None
    return Found(rate, 2 * jobs - left, int(row[0]) / 1e6, int(row[1]))


def _database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def _make(admin: psycopg.Connection[Any], name: str, template: str) -> None:
    _drop(admin, name)
    admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template)))


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


# file: ---------------------------------------------------------------------------------------------------------------


def measured_on_file(jobs: int = FILE_JOBS, rounds: int = ROUNDS) -> Prunes:
    """As many are kept as there are old ones: one is forgotten for each that ends."""
    with folder() as path:
        base, numbers = Path(path).resolve(), count()
        template = base / "template"
        child(prepare, f"file:{template}?retain_count={10 * jobs}", jobs)

        def on_a_copy(keeps: int) -> Found:
            copy = base / f"copy-{next(numbers)}"  # a snapshot of the last may still be written
            shutil.copytree(template, copy)
            rate, left = child(drain, f"file:{copy}?retain_count={keeps}", jobs)
            size = sum(file.stat().st_size for file in copy.rglob("*") if file.is_file())
            return Found(rate, 2 * jobs - left, size / 1e6, 0)

        return in_turn(jobs, jobs, rounds, on_a_copy)


# Report --------------------------------------------------------------------------------------------------------------


def show(found: Prunes, store: str = "PostgreSQL") -> None:
    rows: Sequence[tuple[str, list[Found]]] = (("kept", found.kept), ("forgotten meanwhile", found.forgotten))
    table(
        f"{store}: a drain of {found.jobs:,} jobs beside {found.jobs:,} old ones, medians",
        ("the old ones are", "jobs/s", "forgotten", "MB afterwards", "dead rows"),
        [
            (
                name,
                f"{median(one.rate for one in of):,.0f}",
                f"{median(one.forgotten for one in of):,.0f}",
                f"{median(one.megabytes for one in of):,.0f}",
                f"{median(one.dead_rows for one in of):,.0f}",
            )
            for name, of in rows
        ],
    )


def bars(found: Prunes, store: str = "PostgreSQL") -> list[Bar]:
    forgotten = median(one.forgotten / found.jobs for one in found.forgotten)
    is_file = store == "file"
    least = (
        0.99 if is_file else 0.75
    )  # in a folder a batch may wait for the next append; on PostgreSQL retention starts late
    return [
        Bar(f"{store}: drain while old jobs are forgotten: of the rate without", found.ratio, 0.7 if is_file else 0.8),
        Bar(f"{store}: forgotten in the drain, of {found.jobs:,} old jobs", forgotten, least),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning", description="retention beside a drain")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--store", choices=("postgres", "file"), default="postgres")
    chosen = parser.parse_args()
    if chosen.store == "file":
        found = measured_on_file(chosen.jobs, chosen.rounds)
        show(found, "file")
        finish(bars(found, "file"))
        return
    with PostgresServer(settings=SETTINGS) as server:
        found = measured(server.url(tcp=True), chosen.jobs, chosen.rounds)
    show(found)
    finish(bars(found))


if __name__ == "__main__":
    main()
