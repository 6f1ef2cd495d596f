"""How fast is `postgresql://`, whole path, beside the other job systems on PostgreSQL?

    python -m benchmarks.postgres [--only drain,pickup] [--peers pgqueuer,awa-pg] [--rounds 5] [--jobs 100000]

One server with fsync and synchronous_commit on. Each system in a database of its own, recreated before each
repetition, one worker process, its fastest documented settings (`postgres_peers`). Repetitions take turns, so that
noise meets all alike; figures are medians over the rounds, and a ratio is of one round. A drain is timed from the
worker's start until the database has the end of every job. Exits with 1 if a bar is missed, or, in a run without
--only and --peers, was not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from typing import Any, Final, LiteralString, NamedTuple
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks import dead_rows, pruning, waiting
from benchmarks.children import SETTINGS, server
from benchmarks.postgres_peers.systems import LEASEMILL, System, available
from benchmarks.report import Bar, finish, table

ROWS: Final = (
    "enqueue",
    "drain",
    "single",
    "callers",
    "wal",
    "pickup",
    "held",
    "lanes",
    "few-lanes",
    "blocked",
    "future",
    "commit",
    "waiting",
    "dead-rows",
    "prune",
)
APART: Final = ("waiting", "dead-rows", "prune")
"""Rows with a table of their own."""
OWN_ROWS: Final = {"lanes", "few-lanes", "blocked", "future", "callers"}
SHAPES: Final = {"lanes", "blocked", "future"}
FEW_LANES: Final = {"one-lane": 10_000, "ten-lanes": 40_000}  # jobs in them, at most
CALLS: Final = 20_000
COMMITS: Final = 8_000
COMMIT_WAYS: Final = {
    "psycopg": ("psycopg: async with ctx.commit() as tx", 0.4),
    "sqlalchemy": ("SQLAlchemy on psycopg: with ctx.commit(session)", 0.4),
    "asyncpg": ("SQLAlchemy on asyncpg: async with ctx.commit(session)", 0.4),
    "django": ("Django: with ctx.commit()", 0.4),
}
"""How a user's row is written in a job's commit, and the bar: its rate, of the same two writes without a job."""

SINGLE: Final = 1_000
PICKUPS: Final = 100
FEW_ROUNDS: Final = 3
"""For what does not vary: bytes."""

LONGEST_S: Final = 300.0
POLL_S: Final = 0.005


class Apart(NamedTuple):
    """What a row with a table of its own found."""

    show: Callable[[], None]
    bars: list[Bar]


class Failed(Exception):
    """A system did not do its part; the message names it."""


@dataclass
class Drain:
    """What a worker did: its rate, and the rate over its last jobs."""

    rate: float
    last_rate: float
    waits_ms: list[float]


class Bench:
    """The server, and the databases on it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = psycopg.connect(self.url("postgres"), autocommit=True)
        self._made: set[str] = set()

    def close(self) -> None:
        for name in self._made:
            self._drop(name)
        self._admin.close()

    def url(self, database: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def show(self, setting: str) -> str:
        row = self._admin.execute(sql.SQL("show {}").format(sql.Identifier(setting))).fetchone()
        assert row is not None
        return str(row[0])

    def install(self, system: System) -> None:
        """Its tables, in a template: some take seconds to make them."""
        name = f"leasemill_bench_{system.name}_template"
        self._make(name, "template1")
        run_part(system, "install", self.url(name))

    @contextmanager
    def fresh(self, system: System) -> Iterator[Database]:
        """An empty database with the system's tables."""
        name = f"leasemill_bench_{system.name}"
        self._make(name, f"{name}_template")
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute("checkpoint")
            yield Database(system, self.url(name), connection)

    def _make(self, name: str, template: str) -> None:
        self._drop(name)
        self._made.add(name)
        self._admin.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@dataclass
class Database:
    system: System
    url: str
    connection: psycopg.Connection[Any]

    def bulk(self, count: int) -> float:
        """Jobs per second of its fastest way to enqueue many."""
        return count / float(run_part(self.system, "bulk", self.url, count)["seconds"])

    def settle(self) -> None:
        self.connection.execute("vacuum analyze")
        self.connection.execute("checkpoint")

    def wal(self) -> int:
        return int(self._value("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def drain(self, count: int, last: int = 0) -> Drain:
        """Run its worker until the database has the end of `count` jobs."""
        with worker(self.system, self.url, count) as process:
            start_worker(process)
            reply = read_reply(self.system, "work", process)
            deadline = time.monotonic() + LONGEST_S
            while not self._value(self.system.is_finished, count):
                if time.monotonic() > deadline:
                    raise Failed(f"{self.system.name} called {count:,} handlers and did not finish their jobs")
                time.sleep(POLL_S)
            ended_ns = time.monotonic_ns()
        last_from_ns = next((at for left, at in reply["samples"] if left <= last), reply["began_ns"])
        return Drain(
            rate=count / (ended_ns - reply["began_ns"]) * 1e9,
            last_rate=last / (ended_ns - last_from_ns) * 1e9,
            waits_ms=reply["waits_ms"],
        )

    def pickups(self, count: int) -> list[float]:
        """Milliseconds from before each enqueue in one process to its handler in another, idle otherwise."""
        with worker(self.system, self.url, count) as process:
            start_worker(process)
            time.sleep(2)
            run_part(self.system, "paced", self.url, count)
            waits: list[float] = read_reply(self.system, "work", process)["waits_ms"]
            return waits

    def _value(self, query: LiteralString, count: int = 0) -> Any:
        row = self.connection.execute(query, {"count": count}).fetchone()
        assert row is not None
        return row[0]


# Programs --------------------------------------------------------------------------------------------------------


def run_part(system: System, part: str, url: str, count: int = 0) -> dict[str, Any]:
    return run_program(system.command(part, url, count), f"{system.name}: {part}")


def run_program(command: Sequence[str], what: str) -> dict[str, Any]:
    """The reply of a program that ends by itself."""
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{what} failed: {error}") from None
    reply: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return reply


@contextmanager
def worker(system: System, url: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Its worker's process, ready and waiting for a line; killed in the end, with whatever it started."""
    process = subprocess.Popen(
        system.command("work", url, count),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        read_reply(system, "work", process)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_worker(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def read_reply(system: System, part: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    is_there, _, _ = select.select([process.stdout], [], [], LONGEST_S)
    line = process.stdout.readline() if is_there else ""
    if not line:
        raise Failed(f"{system.name} could not {part}: it {'ended' if is_there else 'was not done in time'}")
    reply: dict[str, Any] = json.loads(line)
    return reply


# What is measured ------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run's choices, and all it found: figures by what they are and whose, one for each round."""

    bench: Bench
    rows: Sequence[str]
    systems: Sequence[System]
    rounds: int
    jobs: int
    found: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    apart: dict[str, Apart] = field(default_factory=dict)

    def keep(self, figure: str, system: System, value: float) -> None:
        self.found[figure, system.name].append(value)

    def has(self, figure: str, name: str) -> bool:
        return bool(self.found.get((figure, name)))

    def median(self, figure: str, name: str) -> float:
        return median(self.found[figure, name])

    def ratio(self, figure: str, name: str, other: str | None = None, of: str | None = None) -> float:
        """Median of the rounds' ratios: to another's same figure, or to another figure of its own."""
        others = self.found[of or figure, other or name]
        return median(one / against for one, against in zip(self.found[figure, name], others, strict=True))

    def each(
        self, figures: Sequence[str], rounds: int, measure: Callable[[System], None], systems: Sequence[System] = ()
    ) -> None:
        """Round after round, in each another goes first. Who fails has no such figures, and the others go on."""
        chosen = list(systems or self.systems)
        for number in range(rounds):
            for system in [*chosen[number % len(chosen) :], *chosen[: number % len(chosen)]]:
                began = time.monotonic()
                try:
                    measure(system)
                except (Failed, psycopg.Error) as error:
                    log(str(error))
                    self.failures.append(f"{', '.join(figures)}: {error}")
                    for figure in figures:
                        self.found.pop((figure, system.name), None)
                    chosen.remove(system)
                    continue
                took_s = time.monotonic() - began
                log(f"{', '.join(figures)}: round {number + 1} of {rounds}, {system.name}, {took_s:.1f} s")
            if not chosen:
                return

    # Beside the others -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self.each(["enqueue", "drain"], self.rounds, self._drain_once)

    def _drain_once(self, system: System) -> None:
        count = system.jobs(self.jobs)
        with self.bench.fresh(system) as database:
            self.keep("enqueue", system, database.bulk(count))
            if "drain" in self.rows:
                database.settle()
                self.keep("drain", system, database.drain(count).rate)
        if "drain" in self.rows and system is LEASEMILL:
            with self.bench.fresh(system) as database:
                database.bulk(self.jobs // 5)
                database.settle()
                self.keep("short drain", system, database.drain(self.jobs // 5).rate)

    def single(self) -> None:
        self.each(["single"], self.rounds, self._single_once)

    def _single_once(self, system: System) -> None:
        count = min(SINGLE, self.jobs)
        with self.bench.fresh(system) as database:
            self.keep("single", system, count / float(run_part(system, "single", database.url, count)["seconds"]))

    def callers(self) -> None:
        self.each(["callers", "one caller"], self.rounds, self._callers_once, [LEASEMILL])

    def _callers_once(self, system: System) -> None:
        for figure, part, most in (("callers", "callers", CALLS), ("one caller", "single", SINGLE)):
            count = min(most, self.jobs)
            with self.bench.fresh(system) as database:
                self.keep(figure, system, count / float(run_part(system, part, database.url, count)["seconds"]))

    def few_lanes(self) -> None:
        self.each(list(FEW_LANES), self.rounds, self._few_lanes_once, [LEASEMILL])

    def _few_lanes_once(self, system: System) -> None:
        for shape, most in FEW_LANES.items():
            count = min(most, self.jobs)
            with self.bench.fresh(system) as database:
                run_part(system, shape, database.url, count)
                database.settle()
                self.keep(shape, system, database.drain(count).rate)

    def wal(self) -> None:
        self.each(["wal"], min(self.rounds, FEW_ROUNDS), self._wal_once)
        self.each(["wal singly"], min(self.rounds, FEW_ROUNDS), self._wal_singly_once, [LEASEMILL])

    def _wal_singly_once(self, system: System) -> None:
        count = min(CALLS, self.jobs)
        with self.bench.fresh(system) as database:
            before = database.wal()
            run_part(system, "single", database.url, count)
            enqueued = database.wal()
            database.connection.execute("vacuum analyze")
            settled = database.wal()
            database.drain(count)
            self.keep("wal singly", system, (enqueued - before + database.wal() - settled) / count)

    def _wal_once(self, system: System) -> None:
        """One checkpoint, before the enqueue: what the drain writes is its own records, not the enqueue's pages."""
        count = system.jobs(self.jobs // 2)
        with self.bench.fresh(system) as database:
            before = database.wal()
            database.bulk(count)
            enqueued = database.wal()
            database.connection.execute("vacuum analyze")
            settled = database.wal()
            database.drain(count)
            self.keep("wal", system, (enqueued - before + database.wal() - settled) / count)

    def pickup(self) -> None:
        self.each(["pickup"], self.rounds, self._pickup_once)

    def _pickup_once(self, system: System) -> None:
        with self.bench.fresh(system) as database:
            waits_ms = database.pickups(min(PICKUPS, self.jobs))
            self.found["pickup", system.name] += waits_ms
            self.keep("slow pickup", system, quantiles(waits_ms, n=100)[98])

    def held(self) -> None:
        self.each(["held", "not held"], self.rounds, self._held_once, [LEASEMILL])
        others = [system for system in self.systems if system is not LEASEMILL]
        if others:
            self.each(["held", "not held"], 1, self._held_once, others)

    def _held_once(self, system: System) -> None:
        """Without a snapshot and with one in turn; which comes first changes from round to round."""
        count, last = (system.jobs(of) for of in (self.jobs * 13 // 10, self.jobs // 5))
        holds_first = len(self.found["held", system.name]) % 2 == 1
        for holds in (holds_first, not holds_first):
            with self.bench.fresh(system) as database:
                database.bulk(count)
                database.settle()
                with dead_rows.snapshot(database.url) if holds else nullcontext():
                    self.keep("held" if holds else "not held", system, database.drain(count, last).last_rate)

    def measure_apart(self, row: str, system: System) -> None:
        with self.bench.fresh(system) as database:
            match row:
                case "waiting":
                    waits = waiting.measured(database.url)
                    self.apart[row] = Apart(partial(waiting.show, waits), waiting.bars(waits))
                case "dead-rows":
                    dead = dead_rows.measured(database.url)
                    self.apart[row] = Apart(partial(dead_rows.show, dead), dead_rows.bars(dead))
                case _:
                    prunes = pruning.measured(database.url, 10 * self.jobs, min(self.rounds, FEW_ROUNDS))
                    self.apart[row] = Apart(partial(pruning.show, prunes), pruning.bars(prunes))

    # Leasemill alone ---------------------------------------------------------------------------------------------

    def own(self) -> None:
        self.each(["plain", "lanes", "blocked", "future"], self.rounds, self._own_once, [LEASEMILL])

    def _own_once(self, system: System) -> None:
        shapes = {"lanes": 0, "blocked": self.jobs, "future": self.jobs * 5}
        for shape in ("plain", *(shape for shape in shapes if shape in self.rows)):
            with self.bench.fresh(system) as database:
                if shape == "lanes":
                    run_part(system, "lanes", database.url, self.jobs)
                else:
                    if shape != "plain":
                        run_part(system, shape, database.url, shapes[shape])
                    database.bulk(self.jobs)
                database.settle()
                self.keep(shape, system, database.drain(self.jobs).rate)

    def commit(self) -> None:
        for way in COMMIT_WAYS:
            figures = [f"commit by {way}", f"{way} alone"]
            self.each(figures, self.rounds, partial(self._commit_once, way), [LEASEMILL])

    def _commit_once(self, way: str, system: System) -> None:
        """A user's row written in each job's commit, and the same two writes by the driver or ORM alone, in turn."""
        count = min(COMMITS, self.jobs)
        module = ["commits"] if way == "psycopg" else ["orm_commits", way]
        parts = {f"commit by {way}": "worker", f"{way} alone": "bare"}
        is_even = len(self.found[f"commit by {way}", system.name]) % 2 == 0
        for figure in list(parts) if is_even else list(reversed(parts)):
            with self.bench.fresh(system) as database:
                command = [sys.executable, "-m", f"benchmarks.postgres_peers.{module[0]}", *module[1:], parts[figure]]
                reply = run_program([*command, database.url, str(count)], figure)
                self.keep(figure, system, count / float(reply["seconds"]))


# The report ------------------------------------------------------------------------------------------------------


def side_by_side(run: Run) -> None:
    ours = LEASEMILL.name

    def cell(figure: str, name: str, form: str = ",.0f") -> str:
        return f"{run.median(figure, name):{form}}" if run.has(figure, name) else "–"

    def times(figure: str, name: str) -> str:
        are_both = run.has(figure, ours) and run.has(figure, name)
        return f"{run.ratio(figure, ours, name):.2f}" if name != ours and are_both else ""

    def p99(name: str) -> str:
        waits = run.found.get(("pickup", name), [])
        return f"{quantiles(waits, n=100)[98]:.1f}" if len(waits) > 1 else "–"

    def held(name: str) -> str:
        return f"{run.ratio('held', name, of='not held'):.2f}" if run.has("held", name) else "–"

    table(
        "side by side: jobs/s, bytes of log for each job (enqueue and drain), milliseconds",
        (
            *("", "jobs", "bulk enqueue", "ours/its", "single", "drain", "ours/its", "log bytes"),
            *("p50", "p99", "held/not held"),
        ),
        [
            (
                system.name,
                f"{system.jobs(run.jobs):,}",
                cell("enqueue", system.name),
                times("enqueue", system.name),
                cell("single", system.name),
                cell("drain", system.name),
                times("drain", system.name),
                cell("wal", system.name),
                cell("pickup", system.name, ",.1f"),
                p99(system.name),
                held(system.name),
            )
            for system in run.systems
        ],
    )
    table(
        "what each does for it",
        ("", "keeps when done", "a finish is fenced by", "one handler call for", "settings"),
        [(one.name, one.keeps, one.fences, one.calls, one.settings) for one in run.systems],
    )
    print(
        f"jobs: in enqueue and drain; log bytes: half as many, medians of up to {FEW_ROUNDS}; held: the rate over the "
        f"last {run.jobs // 5:,} of {run.jobs * 13 // 10:,} jobs (of each system's share), of the peers in one round; "
        "p50, p99: from before the enqueue call to the handler, over all rounds"
    )


def alone(run: Run) -> None:
    shapes = {
        "plain": f"{run.jobs:,} jobs",
        "lanes": f"the same in {max(1, run.jobs // 10):,} lanes",
        "blocked": f"beside {run.jobs:,} blocked in one lane",
        "future": f"beside {run.jobs * 5:,} in the future",
    }
    table(
        "leasemill alone: drain, jobs/s",
        ("", "jobs/s", "of plain"),
        [
            (label, f"{run.median(shape, LEASEMILL.name):,.0f}", f"{run.ratio(shape, LEASEMILL.name, of='plain'):.2f}")
            for shape, label in shapes.items()
            if run.has(shape, LEASEMILL.name)
        ],
    )
    others = {
        "short drain": f"drain of {run.jobs // 5:,} jobs",
        "one-lane": "drain of one lane",
        "ten-lanes": "drain of ten lanes",
        "one caller": "enqueue by one caller, one job a call",
        "callers": "enqueue by 32 callers of one process, one job a call",
    }
    rates = {
        label: run.median(figure, LEASEMILL.name) for figure, label in others.items() if run.has(figure, LEASEMILL.name)
    }
    table("leasemill alone: jobs/s", ("", "jobs/s"), [(label, f"{rate:,.0f}") for label, rate in rates.items()])


def commits(run: Run) -> None:
    ours = LEASEMILL.name
    table(
        "a user's row in each commit, ten at a time: transactions/s",
        ("", "1/s", "without a job", "ratio"),
        [
            (
                named,
                f"{run.median(f'commit by {way}', ours):,.0f}",
                f"{run.median(f'{way} alone', ours):,.0f}",
                f"{run.ratio(f'commit by {way}', ours, of=f'{way} alone'):.2f}",
            )
            for way, (named, _) in COMMIT_WAYS.items()
            if run.has(f"commit by {way}", ours)
        ],
    )


def judged(run: Run) -> tuple[list[Bar], list[str]]:
    """The bars that were measured, and the names of those that were not."""
    ours = LEASEMILL.name
    bars: list[Bar] = []
    missing: list[str] = []

    def plain(name: str, bound: float, figure: str, *, at_least: bool = True) -> None:
        if run.has(figure, ours):
            bars.append(Bar(name, run.median(figure, ours), bound, at_least))
        else:
            missing.append(name)

    def bar(name: str, bound: float, figure: str, other: str = ours, *, of: str = "", at_least: bool = True) -> None:
        if run.has(figure, ours) and run.has(of or figure, other):
            measured = run.ratio(figure, ours, other, of or None)
            bars.append(Bar(name, measured, bound, at_least))
        else:
            missing.append(name)

    bar("drain: times graphile-worker's", 1.1, "drain", "graphile-worker")
    bar("drain: times pg-boss's", 1.2, "drain", "pg-boss")
    bar("drain: times pgqueuer's", 1.2, "drain", "pgqueuer")
    bar("drain of a fifth of the jobs: of the rate of all", 0.7, "short drain", of="drain")
    bar("drain: times awa-pg's", 2, "drain", "awa-pg")
    bar("drain: times chancy's", 8, "drain", "chancy")
    bar("drain: times procrastinate's", 25, "drain", "procrastinate")
    bar("log bytes for each job: times pg-boss's", 1, "wal", "pg-boss", at_least=False)
    plain("log bytes for each job, enqueued in bulk", 1_400, "wal", at_least=False)
    plain("log bytes for each job, enqueued one at a time", 1_600, "wal singly", at_least=False)
    bar("bulk enqueue: times pgqueuer's", 1, "enqueue", "pgqueuer")
    bar("one job a call: times pgqueuer's", 0.9, "single", "pgqueuer")
    bar("32 callers: times one caller's rate", 5, "callers", of="one caller")
    plain("idle pickup p50, ms", 3, "pickup", at_least=False)
    plain("idle pickup p99, ms", 10, "slow pickup", at_least=False)
    plain("one lane, jobs/s", 1_000, "one-lane")
    plain("ten lanes, jobs/s", 5_000, "ten-lanes")
    bar("last jobs under a held snapshot: of the rate without one", 0.75, "held", of="not held")
    bar("ten jobs in each lane: of the rate without lanes", 0.5, "lanes", of="plain")
    bar("beside jobs blocked in one lane: of the plain rate", 0.8, "blocked", of="plain")
    bar("beside jobs in the future: of the plain rate", 0.8, "future", of="plain")
    for way, (_, bound) in COMMIT_WAYS.items():
        bar(f"a user's row in each commit: of {way} alone", bound, f"commit by {way}", of=f"{way} alone")
    return bars, missing


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# The command -----------------------------------------------------------------------------------------------------


def main() -> None:
    chosen = arguments()
    systems = [LEASEMILL, *available(chosen.peers)]
    with server() as url:
        bench = Bench(url)
        try:
            run = Run(bench, chosen.only, systems, chosen.rounds, chosen.jobs)
            introduce(run)
            measure(run)
        finally:
            bench.close()
    if set(run.rows) - OWN_ROWS - {"commit", *APART}:
        side_by_side(run)
    if (OWN_ROWS | {"drain"}) & set(run.rows):
        alone(run)
    if "commit" in run.rows:
        commits(run)
    bars, missing = judged(run)
    for row in APART:
        if row in run.apart:
            run.apart[row].show()
            bars += run.apart[row].bars
        elif row in run.rows:
            missing.append(row)
    if is_narrowed(chosen) and missing:
        print("not measured: " + "; ".join(missing))
    for failure in run.failures:
        print(f"failed: {failure}")
    finish(bars, [] if is_narrowed(chosen) else missing)
    if run.failures:
        sys.exit("failed: what could not be measured is not met")


def is_narrowed(chosen: argparse.Namespace) -> bool:
    """Whether it was asked for less than everything: else every bar must be measured, or one could vanish unnoticed."""
    return chosen.peers is not None or set(chosen.only) != set(ROWS)


def measure(run: Run) -> None:
    run.each(["install"], 1, run.bench.install)
    if {"enqueue", "drain"} & set(run.rows):
        run.drain()
    for row in ("single", "callers", "wal", "pickup", "held", "few-lanes"):
        if row in run.rows:
            getattr(run, row.replace("-", "_"))()
    if SHAPES & set(run.rows):
        run.own()
    if "commit" in run.rows:
        run.commit()
    for row in APART:
        if row in run.rows:
            run.each([row], 1, partial(run.measure_apart, row), [LEASEMILL])


def introduce(run: Run) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if run.bench.show(setting) != "on":
            raise SystemExit(f"{setting} is off on this server: figures of a server that may lose jobs mean nothing")
    settings = ", ".join(f"{name} {run.bench.show(name)}" for name in ("fsync", "synchronous_commit", *SETTINGS))
    print(
        f"PostgreSQL {run.bench.show('server_version')}: {settings}; medians of {run.rounds}, one worker process each"
    )


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.postgres", description="PostgreSQL job systems beside ours"
    )
    parser.add_argument("--only", type=listed, default=ROWS, help=f"rows, of {','.join(ROWS)}")
    parser.add_argument("--peers", type=listed, help="peers, by name; an empty list measures none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=100_000)
    chosen = parser.parse_args(given)
    unknown = set(chosen.only) - set(ROWS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such row; there are {', '.join(ROWS)}")
    if chosen.rounds < 1 or chosen.jobs < 100:
        parser.error("at least one round and a hundred jobs")
    return chosen


def listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    main()
