"""What does a job cost through the whole path: App, worker, `file:` store, default settings, one process?

    python -m benchmarks.worker [--only jobs,lanes,ahead,waiting,watched,processes]

Beside huey on SQLite with synchronous=FULL, and beside a bare event loop awaiting the same nothing. Then what an idle
worker costs, and what 100,000 jobs leave behind. Then how many jobs are held ahead of their slots; how soon a waiter is
woken, and what waiting costs; what hooks and telemetry cost, and what several processes bring, these on PostgreSQL too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks import ahead, processes, waiting, watched
from benchmarks.children import child
from benchmarks.disk import folder
from benchmarks.report import Bar, finish, table
from leasemill import App, Worker

ROWS = ("jobs", "lanes", "ahead", "waiting", "watched", "processes")
RUNS = 5


def make_app(path: str) -> App:
    app = App(f"file:{path}/jobs")

    @app.job
    async def noop_async(text: str) -> None:
        pass

    @app.job
    def noop_sync(text: str) -> None:
        pass

    return app


def leasemill_rate(path: str, kind: str, count: int) -> float:
    app = make_app(path)
    job = app.jobs[kind]
    job.enqueue_many(job.call(text="x" * 80) for _ in range(count))
    worker = Worker(app, drain=True)
    began = time.perf_counter()
    worker.run_sync()
    took = time.perf_counter() - began
    assert worker.metrics.succeeded == count, worker.metrics
    return count / took


def lane_rate(path: str, lanes: int, count: int) -> float:
    """Of jobs in lanes: each waits for the end of the one before."""
    app = App(f"file:{path}/jobs")

    @app.job(lane="lane")
    async def step(lane: str, text: str) -> None:
        pass

    step.enqueue_many(step.call(f"lane {number % lanes}", "x" * 80) for number in range(count))
    worker = Worker(app, drain=True)
    began = time.perf_counter()
    worker.run_sync()
    took = time.perf_counter() - began
    assert worker.metrics.succeeded == count, worker.metrics
    return count / took


def huey_rate(path: str, workers: int, count: int) -> float:
    from huey import SqliteHuey  # noqa: PLC0415

    queue = SqliteHuey("bench", filename=f"{path}/huey.db", fsync=True, results=False)
    left = threading.Semaphore(0)

    @queue.task()  # type: ignore[untyped-decorator]
    def noop(text: str) -> None:
        left.release()

    for _ in range(count):
        noop("x" * 80)
    consumer = queue.create_consumer(workers=workers, periodic=False, initial_delay=0.001, backoff=1.0)
    began = time.perf_counter()
    consumer.start()
    for _ in range(count):
        left.acquire()
    return count / (time.perf_counter() - began)


def bare_rate(count: int = 100_000) -> float:
    async def noop(text: str) -> None:
        pass

    async def every() -> None:
        for _ in range(count):
            await asyncio.create_task(noop("x"))

    began = time.perf_counter()
    asyncio.run(every())
    return count / (time.perf_counter() - began)


def idle_share(path: str, seconds: float = 10.0) -> float:
    """The share of a core that a worker with nothing to do takes."""
    worker = Worker(make_app(path), handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    time.sleep(2.0)
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    worker.stop()
    thread.join()
    return share


class Left(NamedTuple):
    descriptors: int
    threads: int
    megabytes: float


def left_behind(path: str, rounds: int = 5, count: int = 20_000) -> list[Left]:
    """Descriptors, threads and memory after each of several rounds of jobs in one worker."""
    app = App(f"file:{path}/jobs?retain_count=10000")

    @app.job
    async def noop(text: str) -> None:
        pass

    worker = Worker(app, handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    process = psutil.Process()
    found = []
    for number in range(1, rounds + 1):
        noop.enqueue_many(noop.call("x" * 80) for _ in range(count))
        while worker.metrics.succeeded < number * count:
            time.sleep(0.05)
        gc.collect()
        found.append(Left(process.num_fds(), process.num_threads(), process.memory_info().rss / 1e6))
    worker.stop()
    thread.join()
    return found


def in_folder(function: Callable[..., Any], *arguments: object) -> Any:
    with folder() as path:
        return child(function, str(Path(path).resolve()), *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker", description="a worker, whole path")
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows, of {','.join(ROWS)}")
    chosen = parser.parse_args().only.split(",")
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"{', '.join(sorted(unknown))}: no such row; there are {', '.join(ROWS)}")
    bars = []
    if "jobs" in chosen:
        bars += jobs()
    if "lanes" in chosen:
        bars += lanes()
    if "ahead" in chosen:
        bars += ahead.measured()
    if "waiting" in chosen:
        with folder() as path:
            waits = waiting.measured(f"file:{path.resolve()}/jobs")
        waiting.show(waits)
        bars += waiting.bars(waits)
    if "watched" in chosen:
        bars += [bar for store in watched.JOBS for bar in watched.measured(store)]
    if "processes" in chosen:
        bars += processes.measured()
    finish(bars)


def jobs() -> list[Bar]:
    runs = [
        (
            in_folder(leasemill_rate, "noop_async", 30_000),
            in_folder(leasemill_rate, "noop_sync", 15_000),
            in_folder(huey_rate, 1, 3_000),
            in_folder(huey_rate, 10, 3_000),
        )
        for _ in range(RUNS)
    ]
    with_async, with_sync, huey_one, huey_ten = (median(values) for values in zip(*runs, strict=True))
    huey = max(huey_one, huey_ten)
    bare = median(bare_rate() for _ in range(RUNS))
    table(
        "no-op jobs through the whole path, one process, default settings",
        ("", "jobs/s", "times huey", "µs for each job"),
        [
            ("leasemill, async handler", f"{with_async:,.0f}", f"{with_async / huey:.1f}", f"{1e6 / with_async:.0f}"),
            ("leasemill, sync handler", f"{with_sync:,.0f}", f"{with_sync / huey:.1f}", f"{1e6 / with_sync:.0f}"),
            ("huey, SQLite, 1 worker thread", f"{huey_one:,.0f}", "", f"{1e6 / huey_one:.0f}"),
            ("huey, SQLite, 10 worker threads", f"{huey_ten:,.0f}", "", f"{1e6 / huey_ten:.0f}"),
            ("a bare loop, a task for each call, no queue", f"{bare:,.0f}", "", f"{1e6 / bare:.1f}"),
        ],
    )
    idle = in_folder(idle_share)
    left: list[Left] = in_folder(left_behind)
    table(
        "what stays behind, and what idling costs",
        ("after jobs", "descriptors", "threads", "MB"),
        [
            (f"{20_000 * (number + 1):,}", str(it.descriptors), str(it.threads), f"{it.megabytes:.1f}")
            for number, it in enumerate(left)
        ],
    )
    print(f"an idle worker takes {idle:.2%} of a core")
    return [
        Bar("async handlers: times huey", with_async / huey, 5),
        Bar("sync handlers: times huey", with_sync / huey, 5),
        Bar("idle worker, share of a core", idle, 0.01, at_least=False),
        Bar(
            "descriptors after 100,000 jobs, more than after 20,000",
            left[-1].descriptors - left[0].descriptors,
            2,
            at_least=False,
        ),
        Bar(
            "threads after 100,000 jobs, more than after 20,000",
            left[-1].threads - left[0].threads,
            1,
            at_least=False,
        ),
        Bar(
            "memory after 100,000 jobs: times that after 40,000",
            left[-1].megabytes / left[1].megabytes,
            1.15,
            at_least=False,
        ),
    ]


def lanes() -> list[Bar]:
    runs = [
        (
            in_folder(leasemill_rate, "noop_async", 30_000),
            in_folder(lane_rate, 1, 10_000),
            in_folder(lane_rate, 10, 20_000),
            in_folder(lane_rate, 3_000, 30_000),
        )
        for _ in range(RUNS)
    ]
    plain, one, ten, many = (median(values) for values in zip(*runs, strict=True))
    table(
        "no-op jobs in lanes, one process, default settings",
        ("", "jobs/s"),
        [
            ("without lanes", f"{plain:,.0f}"),
            ("one lane", f"{one:,.0f}"),
            ("ten lanes", f"{ten:,.0f}"),
            ("3,000 lanes, ten jobs in each", f"{many:,.0f}"),
        ],
    )
    return [
        Bar("one lane, jobs/s", one, 2_500),
        Bar("ten jobs in each lane: of the rate without lanes", many / plain, 0.6),
    ]


if __name__ == "__main__":
    main()
