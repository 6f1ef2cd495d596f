"""What does a work lease cost: a stream of 1,000,000 offsets on `file:`, and 10,000,000 offsets that have ended?

A stream: 1,000 domains, each offset acquired and succeeded by a call of its own, every call durable before its answer.
The domains are coroutines of one process, so their calls share syncs; beside it one domain alone, a sync for each call.
Memory must not grow after the first 100,000 offsets. On PostgreSQL the same calls, a shorter stream, and single calls
that the fast path leaves to the kernel. Ended offsets: one domain in order, through the kernel's own commands; what
they cost is measured: the bytes of a snapshot, the state a process reads back from it, the process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import psutil
import psycopg

from benchmarks.disk import folder
from benchmarks.report import Bar, finish, table
from leasemill.api.worklease import WorkLease
from leasemill.kernel import commands as c
from leasemill.kernel.image import Image, digest, image, jobs_in_order, restore
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, Job, JobSpec, Policy
from leasemill.kernel.state import State
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.base import Store
from leasemill.store.file.store import FileStore
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import PostgresServer

DOMAINS = 1_000
OFFSETS = 1_000_000
SETTLED = 100_000
ENDED = 10_000_000
FEW = 1_000
NOW = 1_700_000_000 * SECOND
QUEUE = "stream"
OFFSETS_A_SECOND = 300
EXACT_CALL_MS = 6


def rss_mb() -> float:
    gc.collect()
    return int(psutil.Process().memory_info().rss) / 1e6


def folder_mb(path: Path) -> float:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file()) / 1e6


class Point(NamedTuple):
    """How it stood after so many offsets."""

    offsets: int
    seconds: float
    process_mb: float
    folder_mb: float


async def consume(work: WorkLease, domain: str, offsets: range) -> None:
    for offset in offsets:
        lease = (await work.atry_acquire(domain, offset)).lease
        assert lease is not None
        await work.asucceed(domain, lease.token)


async def stream(path: Path, work: WorkLease) -> list[Point]:
    """Every domain gets the next part of the stream; between parts nothing is in flight and it is looked around."""
    points = []
    part = SETTLED // DOMAINS
    began = time.perf_counter()
    for first in range(0, OFFSETS // DOMAINS, part):
        offsets = range(first, first + part)
        await asyncio.gather(*(consume(work, f"domain-{number}", offsets) for number in range(DOMAINS)))
        points.append(Point((first + part) * DOMAINS, time.perf_counter() - began, rss_mb(), folder_mb(path)))
    return points


def many_domains() -> tuple[list[Point], int, float]:
    """The points, the jobs left in the store, and how long another process would take to open the folder."""
    with folder() as path:
        with FileStore(path) as store:
            points = asyncio.run(stream(path, WorkLease(store, QUEUE)))
            view = store.lane(QUEUE, "domain-0")
            assert view is not None
            assert view.finished == ((0, OFFSETS // DOMAINS - 1),)
            kept = sum(store.totals().counts.values())
        began = time.perf_counter()
        with FileStore(path) as store:
            store.totals()
        return points, kept, time.perf_counter() - began


def one_domain(offsets: int = 2_000) -> float:
    with folder() as path, FileStore(path) as store:
        return alone_on(store, offsets)


def alone_on(store: Store, offsets: int) -> float:
    work = WorkLease(store, QUEUE)
    began = time.perf_counter()
    for offset in range(offsets):
        lease = work.try_acquire("domain", offset).lease
        assert lease is not None
        work.succeed("domain", lease.token)
    return offsets / (time.perf_counter() - began)


def in_turn_on(store: Store, offsets: int) -> float:
    """Each offset acquired as the one before succeeds: one durable call for each."""
    work = WorkLease(store, QUEUE)
    lease = work.try_acquire("in turn", 0).lease
    began = time.perf_counter()
    for offset in range(1, offsets + 1):
        assert lease is not None
        lease = work.succeed_then_acquire("in turn", lease.token, offset).lease
    return offsets / (time.perf_counter() - began)


def commit_ms(url: str, count: int) -> float:
    """What a row costs that is updated and committed, one by one: no offset can take less."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table floor (number int)")
        connection.execute("insert into floor values (0)")
        began = time.perf_counter()
        for _ in range(count):
            connection.execute("update floor set number = number + 1", prepare=True)
        return 1_000 * (time.perf_counter() - began) / count


class OnPostgres(NamedTuple):
    """Offsets a second, and the median of one call in milliseconds."""

    alone: float
    in_turn: float
    together: float
    calls_ms: dict[str, float]


def on_postgres(offsets: int = 2_000, domains: int = 100) -> OnPostgres:
    with PostgresServer() as server, PostgresStore(f"{server.url()}&auto_migrate=1") as store:
        least_ms = commit_ms(server.url(), offsets)
        alone, in_turn = alone_on(store, offsets), in_turn_on(store, offsets)

        async def together() -> None:
            work, each = WorkLease(store, QUEUE), range(offsets // domains)
            await asyncio.gather(*(consume(work, f"domain-{number}", each) for number in range(domains)))

        began = time.perf_counter()
        asyncio.run(together())
        together_rate = offsets / (time.perf_counter() - began)
        return OnPostgres(alone, in_turn, together_rate, {"a row, updated": least_ms, **exact_calls_ms(store)})


def exact_calls_ms(store: PostgresStore, count: int = 200) -> dict[str, float]:
    """Calls that the fast path leaves to the kernel, one by one: what each takes."""
    store.enqueue([JobSpec(f"exact-{number}", "exact", "k") for number in range(3 * count)])
    leases = store.claim("worker", ["exact"], 3 * count)
    refused, repeated, failed = leases[:count], leases[count : 2 * count], leases[2 * count :]
    store.ack([c.AckReport(lease.job.id, lease.token) for lease in repeated])
    store.enqueue(
        [JobSpec(f"expiring-{number}", "expiring", "k", policy=Policy(lease_ttl_us=SECOND)) for number in range(count)]
    )
    expiring = store.claim("worker", ["expiring"], count)
    calls: dict[str, tuple[Callable[[c.Lease], object], Sequence[c.Lease]]] = {
        "a refused ack": (lambda lease: store.ack([c.AckReport(lease.job.id, "another")]), refused),
        "a repeated ack": (lambda lease: store.ack([c.AckReport(lease.job.id, lease.token)]), repeated),
        "a failure without a retry": (
            lambda lease: store.nack([c.NackReport(lease.job.id, lease.token, "broke", is_permanent=True)]),
            failed,
        ),
        "an expiry": (lambda _: store.expire(1), expiring),
    }
    time.sleep(1.5)
    return {name: 1_000 * median(seconds(call, one) for one in leases) for name, (call, leases) in calls.items()}


def seconds(call: Callable[[c.Lease], object], lease: c.Lease) -> float:
    began = time.perf_counter()
    call(lease)
    return time.perf_counter() - began


class Cost(NamedTuple):
    """What a state costs in which so many offsets of one domain have ended."""

    offsets: int
    seconds: float
    image_bytes: int
    """The snapshot's content: the image and the jobs."""
    state_bytes: int
    """What a process holds that has read it back."""
    process_mb: float


def ended_in_order() -> list[Cost]:
    """One offset after another through the kernel, as a store would ask it; looked at after few and after all."""
    state = State()
    began = time.perf_counter()
    costs = []
    for first, last in ((0, FEW), (FEW, ENDED)):
        for offset in range(first, last):
            token = f"{offset}-{offset:032x}"
            run(state, c.Acquire((c.AcquireRequest(QUEUE, "domain", offset, "worker", token),)), NOW + offset)
            run(state, c.Ack((c.AckReport(offset_id(QUEUE, "domain", offset), token),)), NOW + offset)
        costs.append(Cost(last, time.perf_counter() - began, *weighed(state), rss_mb()))
    return costs


def weighed(state: State) -> tuple[int, int]:
    kept, jobs = msgspec.msgpack.encode(image(state)), msgspec.msgpack.encode(list(jobs_in_order(state)))
    gc.collect()
    tracemalloc.start()
    again = restore(msgspec.msgpack.decode(kept, type=Image), msgspec.msgpack.decode(jobs, type=list[Job]))
    state_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert digest(again) == digest(state)
    return len(kept) + len(jobs), state_bytes


def on_file() -> list[Bar]:
    few, many = ended_in_order()  # first: what the stream leaves to the process would hide what this takes
    alone = one_domain()
    points, kept, opening_s = many_domains()
    table(
        f"{OFFSETS:,} offsets over {DOMAINS:,} domains on file:, two durable calls for each",
        ("", "offsets/s", "process MB", "folder MB"),
        [
            ("one domain alone, a sync for each call", f"{alone:,.0f}", "", ""),
            *(
                (
                    f"{DOMAINS:,} domains as coroutines, after {point.offsets:,}",
                    f"{point.offsets / point.seconds:,.0f}",
                    f"{point.process_mb:.1f}",
                    f"{point.folder_mb:.0f}",
                )
                for point in points
            ),
        ],
    )
    print(f"jobs left in the store: {kept:,}; opening the folder again took {opening_s:.2f} s")
    table(
        "offsets of one domain that ended in order, through the kernel",
        ("", "offsets/s", "snapshot, bytes", "state read back, bytes", "process MB"),
        [
            (
                f"{cost.offsets:,}",
                f"{cost.offsets / cost.seconds:,.0f}",
                f"{cost.image_bytes:,}",
                f"{cost.state_bytes:,}",
                f"{cost.process_mb:.1f}",
            )
            for cost in (few, many)
        ],
    )
    settled = points[0]
    return [
        Bar(
            "process MB at the end: times that after 100,000",
            points[-1].process_mb / settled.process_mb,
            1.25,
            False,
        ),
        Bar("jobs left in the store, one for each domain", kept, DOMAINS, False),
        Bar("snapshot bytes that 10,000,000 took more than 1,000", many.image_bytes - few.image_bytes, 100, False),
        Bar("state bytes that 10,000,000 took more than 1,000", many.state_bytes - few.state_bytes, 1_000, False),
        Bar("process MB that 10,000,000 took more than 1,000", many.process_mb - few.process_mb, 2, False),
    ]


def on_the_server() -> list[Bar]:
    measured = on_postgres()
    table(
        "the same calls on PostgreSQL, fsync on",
        ("", "offsets/s", "median ms"),
        [
            ("one domain alone, two calls for each", f"{measured.alone:,.0f}", ""),
            ("one domain alone, each acquired as the one before succeeds", f"{measured.in_turn:,.0f}", ""),
            ("100 domains as coroutines", f"{measured.together:,.0f}", ""),
            *((name, "", f"{ms:.2f}") for name, ms in measured.calls_ms.items()),
        ],
    )
    return [
        Bar("on PostgreSQL, offsets a second of one domain, in turn", measured.in_turn, OFFSETS_A_SECOND),
        *(Bar(f"on PostgreSQL, ms for {name}", ms, EXACT_CALL_MS, False) for name, ms in measured.calls_ms.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("file", "postgres"))
    only = parser.parse_args().only
    bars = [] if only == "postgres" else on_file()
    finish(bars + ([] if only == "file" else on_the_server()))


if __name__ == "__main__":
    main()
