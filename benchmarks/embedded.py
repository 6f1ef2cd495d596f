"""How fast is `file:` beside what a user would pick instead on one machine?

Peers (huey with SQLite, persist-queue, litequeue) are made as durable: synchronous=FULL. Every figure is the median of
its runs, all in one go, on the same disk.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
import psutil

from benchmarks import floors
from benchmarks.disk import folder
from benchmarks.report import Bar, finish, medians, table
from leasemill.kernel import commands as c
from leasemill.kernel.events import JobEnqueued
from leasemill.kernel.model import Job, JobSpec, JobState, Policy
from leasemill.store.file.build import build
from leasemill.store.file.disk import RealDisk
from leasemill.store.file.format import (
    SEGMENT_HEADER_BYTES,
    Frame,
    Kind,
    decode_events,
    encode_events,
    frame_bytes,
    read_frame,
)
from leasemill.store.file.manifest import read_manifest
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.system import SystemEntropy

RUNS = 5
PAYLOAD = b'{"text":"' + b"x" * 89 + b'"}'
MANY = 1_000_000
AS_IT_IS = FileOptions(does_maintenance=False)
SPAWN = multiprocessing.get_context("spawn")


def rate(count: int, action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return count / (time.perf_counter() - began)


def specs(store: FileStore, count: int) -> list[JobSpec]:
    return [JobSpec(store.entropy.new_id(), "queue", "kind", PAYLOAD) for _ in range(count)]


# The disk ------------------------------------------------------------------------------------------------------


def one_frame() -> bytes:
    job = JobSpec(SystemEntropy().new_id(), "queue", "kind", PAYLOAD)
    return frame_bytes(Kind.EVENTS, 0, 0, encode_events([JobEnqueued(job, time.time_ns() // 1_000)]))


def bare_writes(count: int = 6_000) -> float:
    """Write and fdatasync, one at a time, into a file of zeros, as a segment is: what any durable enqueue must at least
    do. As many bytes as the frame of one job has."""
    with folder() as path:
        file = RealDisk(path).create("bare", 16 * 1024 * 1024)
        content = one_frame()

        def write() -> None:
            for index in range(count):
                file.write(index * len(content), content)
                file.sync()

        return rate(count, write)


# Leasemill -----------------------------------------------------------------------------------------------------


def enqueue_singly(count: int = 6_000) -> float:
    with folder() as path, FileStore(path) as store:
        jobs = specs(store, count)

        def enqueue() -> None:
            for job in jobs:
                store.run(c.Enqueue((job,), are_new=True))

        return rate(count, enqueue)


def enqueue_threads(count: int = 32_000, threads: int = 32) -> float:
    with folder() as path, FileStore(path) as store:
        jobs = specs(store, count)

        def some(first: int) -> None:
            for job in jobs[first::threads]:
                store.run(c.Enqueue((job,), are_new=True))

        def all_threads() -> None:
            started = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()

        return rate(count, all_threads)


def enqueue_by_four(count: int = 6_000) -> float:
    """Four processes, one job in each call: what a web server that forks does."""
    with folder() as path:
        with FileStore(path):
            pass
        pipes = [SPAWN.Pipe() for _ in range(4)]
        processes = [SPAWN.Process(target=enqueuer, args=(str(path), count // 4, pipe[1])) for pipe in pipes]
        for process in processes:
            process.start()
        for ours, _ in pipes:
            ours.recv()

        def all_four() -> None:
            for ours, _ in pipes:
                ours.send("go")
            for ours, _ in pipes:
                ours.recv()

        found = rate(count, all_four)
        for process in processes:
            process.join()
        return found


def enqueuer(path: str, count: int, pipe: Connection) -> None:
    with FileStore(path) as store:
        jobs = specs(store, count)
        store.run(c.Enqueue(specs(store, 1), are_new=True))
        pipe.send("ready")
        pipe.recv()
        for job in jobs:
            store.run(c.Enqueue((job,), are_new=True))
        pipe.send("done")


def enqueue_coroutines(count: int = 64_000, coroutines: int = 32) -> float:
    with folder() as path, FileStore(path) as store:
        jobs = specs(store, count)

        async def some(first: int) -> None:
            for job in jobs[first::coroutines]:
                await store.arun(c.Enqueue((job,), are_new=True))

        async def all_coroutines() -> None:
            await asyncio.gather(*(some(first) for first in range(coroutines)))

        return rate(count, lambda: asyncio.run(all_coroutines()))


def fill(store: FileStore, count: int) -> None:
    for _ in range(0, count, 1_000):
        store.run(c.Enqueue(specs(store, 1_000), are_new=True))


def enqueue_bulk(count: int = 100_000) -> float:
    with folder() as path, FileStore(path) as store:
        batches = [specs(store, 1_000) for _ in range(count // 1_000)]

        def enqueue() -> None:
            for batch in batches:
                store.run(c.Enqueue(batch, are_new=True))

        return rate(count, enqueue)


def drain(store: FileStore, worker: str) -> int:
    done = 0
    while leases := store.claim(worker, ("queue",), 100):
        store.start([c.StartReport(lease.job.id, lease.token) for lease in leases])
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        done += len(leases)
    return done


def drain_alone(count: int = 30_000) -> float:
    with folder() as path, FileStore(path) as store:
        fill(store, count)
        store.totals()
        return rate(count, lambda: drain(store, "worker"))


def drain_by_four(count: int = 30_000) -> float:
    with folder() as path:
        with FileStore(path) as store:
            fill(store, count)
        pipes = [SPAWN.Pipe() for _ in range(4)]
        processes = [
            SPAWN.Process(target=drainer, args=(str(path), number, pipe[1])) for number, pipe in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for ours, _ in pipes:
            ours.recv()  # each has its replica

        def all_four() -> None:
            for ours, _ in pipes:
                ours.send("go")
            assert sum(ours.recv() for ours, _ in pipes) == count

        found = rate(count, all_four)
        for process in processes:
            process.join()
        return found


def drainer(path: str, number: int, pipe: Connection) -> None:
    with FileStore(path) as store:
        store.totals()
        pipe.send("ready")
        pipe.recv()
        pipe.send(drain(store, f"worker-{number}"))


# Peers ---------------------------------------------------------------------------------------------------------


def huey_rates(count: int) -> tuple[float, float]:
    from huey import SqliteHuey  # noqa: PLC0415

    with folder() as path:
        queue = SqliteHuey("bench", filename=str(path / "huey.db"), fsync=True, results=False)
        queue.storage.conn.execute("pragma synchronous=2")

        @queue.task()  # type: ignore[untyped-decorator]
        def noop(text: str) -> None:
            pass

        def work() -> None:
            for _ in range(count):
                queue.execute(queue.dequeue())

        text = PAYLOAD.decode()
        return rate(count, lambda: [noop(text) for _ in range(count)]), rate(count, work)


def persistqueue_rates(count: int) -> tuple[float, float]:
    from persistqueue import SQLiteAckQueue  # noqa: PLC0415

    with folder() as path:
        queue = SQLiteAckQueue(str(path), auto_commit=True, multithreading=False)
        queue._conn.execute("pragma synchronous=2")
        text = PAYLOAD.decode()

        def work() -> None:
            for _ in range(count):
                queue.ack(queue.get())

        return rate(count, lambda: [queue.put(text) for _ in range(count)]), rate(count, work)


def litequeue_rates(count: int) -> tuple[float, float]:
    from litequeue import LiteQueue  # noqa: PLC0415

    with folder() as path:
        queue = LiteQueue(path / "lite.db")
        queue.conn.execute("pragma synchronous=2")
        text = PAYLOAD.decode()

        def work() -> None:
            for _ in range(count):
                queue.done(queue.pop().message_id)

        return rate(count, lambda: [queue.put(text) for _ in range(count)]), rate(count, work)


def litequeue_in_transactions(count: int = 20_000) -> float:
    """The one way to enqueue in bulk that a peer has: many puts in a transaction of its own."""
    from litequeue import LiteQueue  # noqa: PLC0415

    with folder() as path:
        queue = LiteQueue(path / "lite.db")
        queue.conn.execute("pragma synchronous=2")
        text = PAYLOAD.decode()

        def put() -> None:
            for _ in range(0, count, 1_000):
                with queue.transaction():
                    for _ in range(1_000):
                        queue.put(text)

        return rate(count, put)


# Waking --------------------------------------------------------------------------------------------------------


def claimer(path: str, pipe: Connection) -> None:
    with FileStore(path) as store:
        store.totals()
        watch = store.watch(("queue",))
        pipe.send("ready")
        idle_from, idle_cpu = time.monotonic(), time.process_time()
        watch.wait(5.0)
        pipe.send((time.process_time() - idle_cpu) / (time.monotonic() - idle_from))
        while not pipe.poll():
            if not watch.wait(0.5):
                continue
            for lease in store.claim("claimer", ("queue",), 10):
                seen = time.monotonic_ns()
                pipe.send(seen - int(msgspec.json.decode(lease.job.payload)))
                store.ack((c.AckReport(lease.job.id, lease.token),))


def pickup(count: int = 300) -> tuple[list[float], float]:
    """Milliseconds from the enqueue call in one process to the claim in another, and what the wait costs."""
    with folder() as path, FileStore(path) as store:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=claimer, args=(str(path), theirs))
        process.start()
        ours.recv()
        idle: float = ours.recv()
        found = []
        for _ in range(count):
            payload = str(time.monotonic_ns()).encode()
            store.run(c.Enqueue((JobSpec(store.entropy.new_id(), "queue", "kind", payload),), are_new=True))
            found.append(ours.recv() / 1e6)
            time.sleep(0.005)
        ours.send("stop")
        process.join()
        return found, idle


# A folder with much in it --------------------------------------------------------------------------------------


def in_child(function: Callable[..., Any], *arguments: object) -> Any:
    """The answer of a function run in a fresh process."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_answer, args=(function, arguments, theirs))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def _answer(function: Callable[..., Any], arguments: tuple[object, ...], pipe: Connection) -> None:
    pipe.send(function(*arguments))


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


def first_enqueue(path: str) -> tuple[float, float]:
    """Seconds from opening to the first enqueue's reply, and megabytes it and 1,000 more took."""
    before = rss()
    began = time.perf_counter()
    store = FileStore(path)
    store.run(c.Enqueue(specs(store, 1), are_new=True))
    took = time.perf_counter() - began
    for _ in range(1_000):
        store.run(c.Enqueue(specs(store, 1), are_new=True))
    grown = (rss() - before) / 1e6
    store.close()
    return took, grown


def raw_log(path: str) -> float:
    """Read, check and decode every frame of the log, and keep what is decoded."""
    gc.disable()
    began = time.perf_counter()
    disk = RealDisk(Path(path))
    manifest = read_manifest(disk)
    assert manifest is not None
    kept = []
    for segment in manifest.segments:
        content = (Path(path) / segment.name).read_bytes()
        offset, position = SEGMENT_HEADER_BYTES, segment.first
        while isinstance(frame := read_frame(content, offset, position), Frame) and frame.kind is Kind.EVENTS:
            kept.append(decode_events(frame.body))
            offset, position = offset + frame.end - position, frame.end
    return time.perf_counter() - began


def raw_snapshot(path: str) -> float:
    gc.disable()
    began = time.perf_counter()
    manifest = read_manifest(RealDisk(Path(path)))
    assert manifest is not None
    assert manifest.snapshot is not None
    content = (Path(path) / manifest.snapshot.name).read_bytes()
    decoder = msgspec.msgpack.Decoder(list[Job])
    kept, position = [], 0
    while isinstance(frame := read_frame(content, position, position), Frame) and frame.kind is Kind.EVENTS:
        if position:
            kept.append(decoder.decode(frame.body))
        position = frame.end
    return time.perf_counter() - began


def opening(path: str) -> tuple[float, float]:
    """Seconds until the first answer, and megabytes. Takes no snapshot: the next opening is to find the same folder."""
    began = time.perf_counter()
    with FileStore(path, options=AS_IT_IS) as store:
        store.totals()
        return time.perf_counter() - began, rss() / 1e6


def work_off(path: str, count: int) -> float:
    """Enqueue, claim and finish so many jobs in one process; returns its megabytes then."""
    with FileStore(path, options=AS_IT_IS) as store:
        store.totals()
        for _ in range(0, count, 1_000):
            store.run(c.Enqueue(specs(store, 1_000), are_new=True))
            leases = store.claim("worker", ("queue",), 1_000)
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        return rss() / 1e6


def look_at_ended(path: str) -> tuple[float, float, float]:
    """Seconds until the first answer, microseconds to find a job by its id, and megabytes."""
    began = time.perf_counter()
    with FileStore(path, options=AS_IT_IS) as store:
        assert store.totals().counts[JobState.SUCCEEDED] == MANY
        opened = time.perf_counter() - began
        some = [job.spec.id for job in store.jobs(c.JobFilter(), limit=1_000).jobs]
        found = 1e6 / rate(len(some), lambda: [store.job(job_id) for job_id in some])
        return opened, found, rss() / 1e6


def heartbeats(path: str, pipe: Connection) -> None:
    """Extend a lease every 20 ms until it is stopped; returns the longest an extension took."""
    with FileStore(path, options=AS_IT_IS) as store:
        lease = store.claim("holder", ("queue",), 1, kinds={"kind": Policy(lease_ttl_us=600_000_000)})[0]
        pipe.send("ready")
        longest = 0.0
        while not pipe.poll(0.02):
            began = time.perf_counter()
            store.extend((c.LeaseRef(lease.job.id, lease.token),))
            longest = max(longest, time.perf_counter() - began)
        pipe.send(longest)


def heartbeats_during(path: str) -> float:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=heartbeats, args=(path, theirs))
    process.start()
    ours.recv()
    in_child(opening, path)
    ours.send("stop")
    longest: float = ours.recv()
    process.join()
    return longest


def main() -> None:
    bars: list[Bar] = []
    singly(bars)
    in_bulk(bars)
    waking(bars)
    much(bars)
    much_ended(bars)
    forgetting(bars)
    finish(bars)


def singly(bars: list[Bar]) -> None:
    frame = one_frame()
    rounds = [
        (bare_writes(), enqueue_singly(), enqueue_threads(), enqueue_coroutines(), enqueue_by_four())
        for _ in range(RUNS)
    ]
    bare, one, threads, coroutines, four = (median(values) for values in zip(*rounds, strict=True))
    least = {
        "bare: 32 threads that share a sync": medians(lambda: floors.by_threads(frame), RUNS),
        "bare: four processes that append to one file": medians(lambda: floors.by_processes(frame), RUNS),
    }
    share = median(ours / disk for disk, ours, *_ in rounds)
    by_threads = median(many / single for _, single, many, *_ in rounds)
    by_coroutines = median(many / single for _, single, _, many, _ in rounds)
    by_four = median(many / single for _, single, _, _, many in rounds)
    peers = peer_rates()
    table(
        "durable enqueue, one job in each call, jobs/s",
        ("", "jobs/s", "of the bare write"),
        [
            ("bare: a write and fdatasync into a prepared file", f"{bare:,.0f}", "1"),
            *((name, f"{found:,.0f}", f"{found / bare:.2f}") for name, found in least.items()),
            ("leasemill, one thread", f"{one:,.0f}", f"{share:.2f}"),
            ("leasemill, 32 threads", f"{threads:,.0f}", f"{threads / bare:.2f}"),
            ("leasemill, 32 coroutines", f"{coroutines:,.0f}", f"{coroutines / bare:.2f}"),
            ("leasemill, four processes together", f"{four:,.0f}", f"{four / bare:.2f}"),
            *((name, f"{found[0]:,.0f}", f"{found[0] / bare:.2f}") for name, found in peers.items()),
        ],
    )
    bars += [
        Bar("one thread: of the bare write's rate", share, 0.7),
        Bar("32 threads: times one thread's rate", by_threads, 3.5),
        Bar("32 coroutines: times one thread's rate", by_coroutines, 6),
        Bar("four processes together enqueue: of one's rate", by_four, 1.05),
    ]


_PEERS: dict[str, tuple[float, float]] = {}


def peer_rates() -> dict[str, tuple[float, float]]:
    if not _PEERS:
        for name, measure in (
            ("huey, SQLite", huey_rates),
            ("persist-queue, SQLite", persistqueue_rates),
            ("litequeue, SQLite", litequeue_rates),
        ):
            found = [measure(2_000) for _ in range(RUNS)]
            _PEERS[name] = (median(pair[0] for pair in found), median(pair[1] for pair in found))
    return _PEERS


def in_bulk(bars: list[Bar]) -> None:
    bulk, alone, four = medians(enqueue_bulk, RUNS), medians(drain_alone, RUNS), medians(drain_by_four, RUNS)
    in_transactions = medians(litequeue_in_transactions, RUNS)
    peers = peer_rates()
    table(
        "in bulk, jobs/s (the peers take and finish one job in each call)",
        ("", "enqueue", "drain"),
        [
            ("leasemill, 1,000 in a call; 100 in a call", f"{bulk:,.0f}", f"{alone:,.0f}"),
            ("leasemill, four processes together", "", f"{four:,.0f}"),
            ("litequeue, SQLite, 1,000 in a transaction", f"{in_transactions:,.0f}", ""),
            *((name, f"{found[0]:,.0f}", f"{found[1]:,.0f}") for name, found in peers.items()),
        ],
    )
    print(f"bulk enqueue is {bulk / in_transactions:.1f} times litequeue's 1,000 in a transaction")
    bars += [
        Bar("bulk enqueue: times the best peer, one job a call", bulk / max(found[0] for found in peers.values()), 10),
        Bar("drain: times the best peer", alone / max(found[1] for found in peers.values()), 7),
        Bar("four processes together drain: of one's rate", four / alone, 0.5),
    ]


def waking(bars: list[Bar]) -> None:
    found, idle = pickup()
    p50, p99 = median(found), quantiles(found, n=100)[98]
    table(
        "an idle claimer in another process",
        ("", "p50 ms", "p99 ms", "of a core while idle"),
        [("from the enqueue call to the claim's reply", f"{p50:.2f}", f"{p99:.2f}", f"{idle:.4f}")],
    )
    bars += [
        Bar("pickup p50, ms", p50, 1.5, at_least=False),
        Bar("pickup p99, ms", p99, 5, at_least=False),
        Bar("idle claimer, share of a core", idle, 0.01, at_least=False),
    ]


def much(bars: list[Bar]) -> None:
    with folder() as empty, folder() as full:
        for path, count in ((empty, 0), (full, MANY)):
            with FileStore(path, options=AS_IT_IS) as store:
                fill(store, count)
        firsts = [(in_child(first_enqueue, str(empty)), in_child(first_enqueue, str(full))) for _ in range(RUNS)]
        on_empty, on_full = (median(pair[side][0] for pair in firsts) for side in (0, 1))
        grown = max(pair[1][1] for pair in firsts)
        logs = [(in_child(raw_log, str(full)), in_child(opening, str(full))) for _ in range(3)]
        log_ratio = median(opened[0] / raw for raw, opened in logs)
        held_up = heartbeats_during(str(full))
        build(full, keep_segments=False, seal_first=True)
        snapshots = [(in_child(raw_snapshot, str(full)), in_child(opening, str(full))) for _ in range(3)]
        snapshot_ratio = median(opened[0] / raw for raw, opened in snapshots)
        from_log, from_snapshot = (median(it[1] for _, it in opened) for opened in (logs, snapshots))
        opened_s = median(it[0] for _, it in snapshots)
        table(
            "a folder with 1,000,000 READY jobs",
            ("", "seconds", "against"),
            [
                ("first enqueue of a process, empty folder", f"{on_empty:.4f}", ""),
                ("first enqueue of a process, this folder", f"{on_full:.4f}", f"{on_full / on_empty:.2f}"),
                ("  megabytes it took, with 1,000 more", f"{grown:.1f}", ""),
                ("read, check and decode the log", f"{median(raw for raw, _ in logs):.2f}", ""),
                ("open from the log", f"{median(it[0] for _, it in logs):.2f}", f"{log_ratio:.2f}"),
                ("read, check and decode the snapshot", f"{median(raw for raw, _ in snapshots):.2f}", ""),
                ("open from the snapshot", f"{median(it[0] for _, it in snapshots):.2f}", f"{snapshot_ratio:.2f}"),
                ("  megabytes of the process", f"{from_snapshot:,.0f}", ""),
                ("  megabytes when opened from the log", f"{from_log:,.0f}", ""),
                ("longest heartbeat elsewhere meanwhile", f"{held_up:.4f}", ""),
            ],
        )
    bars += [
        Bar("first enqueue on 1,000,000 jobs: times that on none", on_full / on_empty, 2, at_least=False),
        Bar("megabytes a process takes that only enqueues", grown, 20, at_least=False),
        Bar("open from the log: times reading it", log_ratio, 11, at_least=False),
        Bar("open from the snapshot: times reading it", snapshot_ratio, 3, at_least=False),
        Bar("longest heartbeat while another process opens, s", held_up, 0.25, at_least=False),
        Bar("open with 1,000,000 waiting jobs, s", opened_s, 3, at_least=False),
        Bar("megabytes with 1,000,000 waiting jobs", max(from_log, from_snapshot), 450, at_least=False),
    ]


def much_ended(bars: list[Bar]) -> None:
    with folder() as path:
        worked = in_child(work_off, str(path), MANY)
        build(path, keep_segments=False, seal_first=True)
        looks = [in_child(look_at_ended, str(path)) for _ in range(3)]
    opened, found, megabytes = (median(values) for values in zip(*looks, strict=True))
    table(
        "a folder with 1,000,000 SUCCEEDED jobs",
        ("", "measured"),
        [
            ("megabytes of the process that worked them off", f"{worked:,.0f}"),
            ("megabytes of one that opens the folder then", f"{megabytes:,.0f}"),
            ("seconds to open it", f"{opened:.2f}"),
            ("microseconds to find a job by its id", f"{found:.0f}"),
        ],
    )
    bars += [
        Bar("open with 1,000,000 ended jobs, s", opened, 4, at_least=False),
        Bar("megabytes after 1,000,000 ended jobs", max(worked, megabytes), 150, at_least=False),
    ]


def forgetting(bars: list[Bar]) -> None:
    from benchmarks import pruning  # noqa: PLC0415  (it needs the driver of PostgreSQL: not in the processes above)

    found = pruning.measured_on_file()
    pruning.show(found, "file")
    bars += pruning.bars(found, "file")


if __name__ == "__main__":
    main()
