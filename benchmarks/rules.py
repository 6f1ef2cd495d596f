"""What do the rules cost: limits, unique keys, groups, schedules, on `file:` and PostgreSQL, whole path?

    python -m benchmarks.rules [--only file,postgres,members,rate,idle] [--members 100000]

Each figure is beside the same jobs without the rule, measured in turn in the same run; medians. A worker has 100 slots
in every case, so that a limit of 50 is the limit. No peer is measured: none has these rules on a folder, and a ratio to
one's own plain jobs is what a user pays.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
from datetime import timedelta
from statistics import median

from benchmarks.children import SPAWN, child, new_url
from benchmarks.groups import compare
from benchmarks.report import Bar, finish, table
from leasemill import App, Limit, Rate, Worker
from leasemill.api.job import JobType
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState, LimitTerms

ROWS = ("file", "postgres", "members", "rate", "idle")
RUNS = 3
SLOTS = 100
JOBS = {"file": 20_000, "postgres": 10_000}
KEYS = 10_000
LIMITED = {"file": (0.5, 0.4), "postgres": (0.3, 0.25)}
"""Of the plain rate, at least: under a queue limit of 50, and with keys."""
SCHEDULES = 1_000
MEMBERS = 100_000
MEMBERS_WORKERS = 2
MEMBERS_BATCH = 100
RATE = Rate(100, per=1, burst=10, name="rate")
RATE_S = 30
RATE_WORKERS = 2


def make_app(url: str) -> App:
    app = App(url)

    @app.job(queue="plain")
    async def plain(number: int) -> None:
        pass

    @app.job(queue="narrow")
    async def narrow(number: int) -> None:
        pass

    @app.job(queue="keyed", limit=Limit(2, by="number"))
    async def keyed(number: int) -> None:
        pass

    @app.job(queue="unique", unique=True)
    async def unique(number: int) -> None:
        pass

    @app.job(queue="grouped")
    async def grouped(number: int) -> None:
        pass

    return app


def enqueue_rate(app: App, kind: str, count: int) -> float:
    job: JobType[..., None] = app.jobs[kind]
    began = time.perf_counter()
    for first in range(0, count, 1_000):
        numbers = range(first, first + 1_000)
        calls = (job.call(number % KEYS if kind == "keyed" else number) for number in numbers)
        if kind == "grouped":
            app.groups.get("all").enqueue_many(calls)
        else:
            job.enqueue_many(calls)
    return count / (time.perf_counter() - began)


def drain_rate(app: App, kind: str, count: int) -> float:
    worker = Worker(app, queues=[kind], concurrency=SLOTS, drain=True, handle_signals=False)
    began = time.perf_counter()
    worker.run_sync()
    took = time.perf_counter() - began
    assert worker.metrics.succeeded == count, worker.metrics
    return count / took


def rates(url: str, kind: str, count: int) -> tuple[float, float]:
    """Enqueued in calls of 1,000, then worked off; each per second."""
    with make_app(url) as app:
        app.store.totals()  # connected, and its tables are there
        if kind == "narrow":
            app.store.run(c.SetLimit("queue:narrow", LimitTerms(places=50), "benchmark", "to measure it"))
        if kind == "grouped":
            app.store.run(c.CreateGroup("all"))
        enqueued = enqueue_rate(app, kind, count)
        return enqueued, drain_rate(app, kind, count)


def rated_app(url: str) -> App:
    app = App(url)

    @app.job(queue="rated", limit=RATE)
    async def rated(number: int) -> None:
        pass

    return app


def work_rated(url: str) -> None:
    with rated_app(url) as app:
        Worker(app, queues=["rated"], concurrency=SLOTS).run_sync()


def granted_at(url: str) -> list[int]:
    """When the jobs were granted that two workers are given for 30 s, in microseconds, by the records of the store."""
    count = RATE.rate * RATE_S
    with rated_app(url) as app:
        for first in range(0, count, 1_000):
            app.jobs["rated"].enqueue_many(app.jobs["rated"].call(first + number) for number in range(1_000))
        workers = [SPAWN.Process(target=work_rated, args=(url,)) for _ in range(RATE_WORKERS)]
        for worker in workers:
            worker.start()
        while app.store.totals().counts[JobState.SUCCEEDED] < count:
            time.sleep(1.0)
        for worker in workers:
            worker.terminate()
            worker.join()
        instants: list[int] = []
        after: int | None = 0
        while after is not None:
            page = app.store.jobs(limit=1_000, after=after)
            instants += [execution.leased_at for job in page.jobs for execution in job.executions]
            after = page.after
    return sorted(instants)


def most_above(instants: list[int]) -> float:
    """By how many grants any interval, its ends included, had more than burst + rate * time. Never above 0."""
    interval_us = SECOND / RATE.rate
    most, latest = -math.inf, -math.inf
    for number, at in enumerate(instants):
        latest = max(latest, at - number * interval_us)
        most = max(most, 1 - RATE.burst + (latest - at) / interval_us + number)
    return most


def held_rates() -> list[Bar]:
    """A rate of 100 a second, two workers that could do more, for 30 s."""
    bars, rows = [], []
    for store in ("file", "postgres"):
        with new_url(store) as url:
            instants = granted_at(url())
        steady = instants[RATE.burst - 1 :]  # the first burst comes at once
        rate = (len(steady) - 1) / ((steady[-1] - steady[0]) / SECOND)
        above = most_above(instants)
        rows.append((store, f"{len(instants):,}", f"{rate:.2f}", f"{above:.2f}"))
        bars += [
            Bar(f"{store}: a rate of {RATE.rate} a second, of it", rate / RATE.rate, 0.95),
            Bar(f"{store}: a rate of {RATE.rate} a second, of it", rate / RATE.rate, 1.05, False),
            Bar(f"{store}: grants above burst + rate * time, in any interval", above, 0.0, False),
        ]
    table(
        f"a rate of {RATE.rate} a second with a burst of {RATE.burst}, {RATE_WORKERS} workers, {RATE_S} s",
        ("", "grants", "a second", "most above burst + rate * time"),
        rows,
    )
    return bars


def idle_share(url: str, schedules: int, seconds: float = 20.0) -> float:
    """The share of a core of a worker that has nothing to do but to wait for its schedules, all far away."""
    app = App(url)

    @app.job
    async def noop(number: int) -> None:
        pass

    for number in range(schedules):
        app.cron(timedelta(days=300), noop, name=f"s{number}", args={"number": number})
    worker = Worker(app, handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    while app.store.run(c.ListSchedules(schedules + 1)).__len__() < schedules:
        time.sleep(0.5)
    time.sleep(3.0)
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    worker.stop()
    thread.join()
    return share


def measured(store: str) -> list[Bar]:
    kinds = ("plain", "narrow", "keyed", "unique", "grouped")
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with new_url(store) as url:
        for _ in range(RUNS):
            for kind in kinds:
                found[kind].append(child(rates, url(), kind, JOBS[store]))
    enqueue = {kind: median(one[0] for one in found[kind]) for kind in kinds}
    drain = {kind: median(one[1] for one in found[kind]) for kind in kinds}
    named = {
        "plain": "plain jobs",
        "narrow": "a queue limit of 50",
        "keyed": f"{KEYS:,} keys of limit 2",
        "unique": "unique jobs",
        "grouped": "one group",
    }
    table(
        f"{store}: {JOBS[store]:,} jobs, {SLOTS} slots, one worker; jobs/s",
        ("", "enqueue", "of plain", "drain", "of plain"),
        [
            (
                named[kind],
                f"{enqueue[kind]:,.0f}",
                f"{enqueue[kind] / enqueue['plain']:.2f}",
                f"{drain[kind]:,.0f}",
                f"{drain[kind] / drain['plain']:.2f}",
            )
            for kind in kinds
        ],
    )
    narrow, keyed = LIMITED[store]
    return [
        Bar(f"{store}: drain under a queue limit of 50, of plain", drain["narrow"] / drain["plain"], narrow),
        Bar(f"{store}: drain with {KEYS:,} keys of limit 2, of plain", drain["keyed"] / drain["plain"], keyed),
        Bar(f"{store}: unique enqueue, of plain", enqueue["unique"] / enqueue["plain"], 0.6),
    ]


def members(count: int) -> list[Bar]:
    """One group of many members, whose ends several processes report."""
    bars, rows = [], []
    for store in ("file", "postgres"):
        with new_url(store) as url:
            found = compare((url(), url()), count, MEMBERS_WORKERS, MEMBERS_BATCH)
        ratio = found.grouped[1] / found.plain[1]
        rows.append((store, f"{found.plain[1]:,.0f}", f"{found.grouped[1]:,.0f}", f"{ratio:.2f}", f"{found.callbacks}"))
        bars += [
            Bar(f"{store}: ends of {count:,} members of one group, of plain", ratio, 0.5),
            Bar(f"{store}: callbacks of the group", found.callbacks, 1.0),
            Bar(f"{store}: callbacks of the group", found.callbacks, 1.0, False),
        ]
    table(
        f"one group of {count:,} members, {MEMBERS_WORKERS} processes, batches of {MEMBERS_BATCH}; ends/s",
        ("", "plain", "members", "of plain", "callbacks"),
        rows,
    )
    return bars


def idle() -> list[Bar]:
    shares = {}
    for store in ("file", "postgres"):
        with new_url(store) as url:
            for count in (0, SCHEDULES):
                shares[store, count] = child(idle_share, url(), count)
    table(
        "an idle worker, share of a core",
        ("", "file", "postgres"),
        [
            (f"{count:,} schedules", *(f"{shares[store, count]:.4f}" for store in ("file", "postgres")))
            for count in (0, SCHEDULES)
        ],
    )
    return [
        Bar(f"{store}: idle with {SCHEDULES:,} schedules, share of a core", shares[store, SCHEDULES], 0.01, False)
        for store in ("file", "postgres")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rules", description="what the rules cost")
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows, of {','.join(ROWS)}")
    parser.add_argument(
        "--members", type=int, default=MEMBERS, help=f"of one group, up to 1,000,000 (default {MEMBERS:,})"
    )
    given = parser.parse_args()
    chosen = given.only.split(",")
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"{', '.join(sorted(unknown))}: no such row; there are {', '.join(ROWS)}")
    bars: list[Bar] = []
    for store in ("file", "postgres"):
        if store in chosen:
            bars += measured(store)
    if "members" in chosen:
        bars += members(given.members)
    if "rate" in chosen:
        bars += held_rates()
    if "idle" in chosen:
        bars += idle()
    finish(bars)


if __name__ == "__main__":
    main()
