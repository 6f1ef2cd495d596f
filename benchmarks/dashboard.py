"""How fast is every page of the dashboard while a worker drains, and what do ten open overviews cost the drain?

    python -m benchmarks.dashboard [--only file,postgres] [--jobs N] [--measure pages,drain] [--seconds N] [--turns N]

A store is filled: a tenth of its jobs have failed, and a tenth of the rest stand in 10,000 lanes. A worker in a process
of its own drains it; the dashboard is served by another, as `leasemill dashboard` serves it, and is read over HTTP.
The time is to the first byte, while up to 2,000 jobs a second are drained. The drain is measured at full speed, without
and with the dashboard and ten viewers, each of which follows the events and fetches the overview when one comes, as a
browser does; in turns, from the same jobs. Viewers have a process of their own, which steps aside for all others: they
stand for browsers on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.children import SPAWN, new_url
from benchmarks.dashboard_viewers import VIEWERS, view
from benchmarks.report import Bar, finish, table
from leasemill import App, Worker
from leasemill.dashboard.pages import PAGES
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store

ROWS = ("file", "postgres")
PARTS = ("pages", "drain")
JOBS = {"file": 200_000, "postgres": 1_000_000}
LANES = 10_000
BATCH = 1_000
SLOTS = 50
PACED_S = 0.025
ASKED = 40
DRAIN_S = 10.0
DRAINED = 0.8
"""Of the jobs that wait, at most, and on a database in all turns together: the rest is for the pages."""
TURNS = 4
FIRST_BYTE_MS = 200.0
COST = 0.05
TICKS_S = os.sysconf("SC_CLK_TCK")


def fill(store: Store, jobs: int) -> None:
    failed = jobs // 10
    for first in range(0, failed, BATCH):
        store.enqueue([_spec(number, "broken") for number in range(first, first + BATCH)])
        leases = store.claim("filler", ["broken"], BATCH)
        errors = [f"ValueError: order {index % 7} of {index} is not there" for index in range(len(leases))]
        named = zip(leases, errors, strict=True)
        store.nack([c.NackReport(one.job.id, one.token, error, is_permanent=True) for one, error in named])
    for first in range(failed, jobs, BATCH):
        store.enqueue([_spec(number, "work") for number in range(first, first + BATCH)])


def _spec(number: int, queue: str) -> JobSpec:
    lane = f"lane-{number // 10 % LANES}" if queue == "work" and number % 10 == 0 else None
    return JobSpec(f"job-{number:07}", queue, "work", b'{"number":%d}' % number, lane, headers={"tenant": "north"})


# Who works and who serves ----------------------------------------------------------------------------------------


def _work(pipe: Connection, url: str, seconds: float, count: Any) -> None:
    app = App(url)

    @app.job(queue="work", name="work")
    async def work(number: int) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        count.value += 1

    worker = Worker(app, concurrency=SLOTS, handle_signals=False)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    pipe.send("runs")
    pipe.recv()
    worker.stop()  # it gives back what it holds: the next one must not have to wait for it
    thread.join()


def _serve(pipe: Connection, url: str) -> None:
    from leasemill.cli.dashboard import served, step_aside  # noqa: PLC0415  (in the server's process alone)
    from leasemill.server.address import bound_socket  # noqa: PLC0415

    step_aside()
    with open_store(url) as store, bound_socket("127.0.0.1", 0) as listener:
        link, server = served(store, listener, "127.0.0.1", by="bench", on_sign_in=lambda _link: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        pipe.send(link)
        pipe.recv()
        server.should_exit = True
        thread.join()


class Running(NamedTuple):
    """A process, and what it sent when it was ready."""

    pid: int
    reply: str

    def processor_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_S


@contextmanager
def process(function: Callable[..., None], *arguments: object) -> Iterator[Running]:
    """A process that runs until it is asked to end."""
    ours, theirs = SPAWN.Pipe()
    running = SPAWN.Process(target=function, args=(theirs, *arguments))
    running.start()
    theirs.close()
    try:
        reply = ours.recv()
        assert running.pid is not None
        yield Running(running.pid, reply)
    finally:
        ours.send("end")
        running.join(30)
        running.kill()


def signed_in(link: str) -> httpx.Client:
    client = httpx.Client(base_url=link.partition("/sign-in")[0], timeout=60)
    client.get(link)
    return client


# Pages -----------------------------------------------------------------------------------------------------------


def addresses() -> list[str]:
    listed = [page.path for page in PAGES if page.section is not None]
    filters = (
        *("state=failed", "state=ready", "state=leased", "state=succeeded", "queue=work", "kind=nothing"),
        *("lane=lane-10&queue=work", "error=order+3", "id=job-01", "header=tenant", "header=nothing"),
    )
    ids = ("job-0000000", "job-0000999")
    return [
        *listed,
        *(f"/jobs?{one}" for one in filters),
        *(f"/job?id={one}" for one in ids),
        *(
            "/lanes?queue=work",
            f"/lanes?queue=work&lane=lane-{LANES - 1}",
            "/failures?queue=broken",
            "/leases?queue=work",
        ),
        "/acts/pause-queue?queue=work",
    ]


def first_bytes(client: httpx.Client, address: str) -> list[float]:
    """Milliseconds to the first byte, sorted."""
    found: list[float] = []
    for _ in range(ASKED):
        began = time.perf_counter()
        with client.stream("GET", address) as response:
            next(response.iter_raw())
            found.append(1_000 * (time.perf_counter() - began))
            assert response.status_code == 200, address
    return sorted(found)


def measure_pages(name: str, url: str) -> Bar:
    count = SPAWN.RawValue("q", 0)
    _set_paused(url, is_paused=False)
    with process(_work, url, PACED_S, count), process(_serve, url) as server:
        client = signed_in(server.reply)
        client.get("/")  # opens the store
        began, before = time.perf_counter(), count.value
        pages = [(path, first_bytes(client, path)) for path in addresses()]
        rate = (count.value - before) / (time.perf_counter() - began)
    shown = [(path, median(times), times[int(0.95 * len(times))]) for path, times in pages]
    rows = [(path, f"{p50:.0f}", f"{p95:.0f}") for path, p50, p95 in shown]
    table(f"{name}: time to the first byte while {rate:,.0f} jobs/s are drained", ("page", "p50 ms", "p95 ms"), rows)
    assert rate > 0, "no job was left while pages were requested: fill in more"
    slowest, _, p95 = max(shown, key=lambda one: one[2])
    return Bar(f"{name}: slowest page, p95, ms ({slowest})", p95, FIRST_BYTE_MS, at_least=False)


# The drain -------------------------------------------------------------------------------------------------------


class Drain(NamedTuple):
    """Processor seconds are per second, of one core; overviews are those that viewers were sent, per second."""

    rate: float
    overviews: float
    worker: float
    dashboard: float = 0.0
    viewers: float = 0.0

    @property
    def row(self) -> tuple[str, ...]:
        used = (f"{one:.3f}" for one in (self.worker, self.dashboard, self.viewers))
        return f"{self.rate:,.0f}", *used, f"{1e6 * self.worker / self.rate:.1f}", f"{self.overviews:.1f}"


def drained(url: str, seconds: float, most: int, *, is_watched: bool) -> Drain:
    count, sent = SPAWN.RawValue("q", 0), SPAWN.RawValue("q", 0)
    _set_paused(url, is_paused=True)
    with process(_work, url, 0.0, count) as worker:
        if not is_watched:
            return _timed(url, seconds, most, count, sent, [worker])
        with process(_serve, url) as server, process(view, server.reply, sent) as viewers:
            return _timed(url, seconds, most, count, sent, [worker, server, viewers])


def _timed(url: str, seconds: float, most: int, count: Any, sent: Any, processes: list[Running]) -> Drain:
    _set_paused(url, is_paused=False)
    while count.value < SLOTS:
        time.sleep(0.01)
    used, before, sent_before = [one.processor_s() for one in processes], count.value, sent.value
    began = time.perf_counter()
    while time.perf_counter() - began < seconds and count.value < most:
        time.sleep(0.05)
    done, elapsed = count.value - before, time.perf_counter() - began
    shares = [(one.processor_s() - at) / elapsed for one, at in zip(processes, used, strict=True)]
    overviews = (sent.value - sent_before) / elapsed
    _set_paused(url, is_paused=True)
    return Drain(done / elapsed, overviews, *shares)


def _set_paused(url: str, *, is_paused: bool) -> None:
    with open_store(url) as store:
        (store.pause if is_paused else store.resume)("work", by="bench", reason="a drain is timed")


def measure_drain(name: str, url: str, next_url: Callable[[], str], seconds: float, turns: int) -> Bar:
    """In turns, the order reversed each time, so that what changes with time counts for both."""
    costs, rows = list[float](), list[tuple[str, ...]]()
    with open_store(url) as store:
        waiting = store.totals().counts[JobState.READY]
    most = int(waiting * DRAINED / (1 if url.startswith("file:") else 2 * turns))
    for turn in range(turns):
        found = dict[bool, Drain]()
        for is_watched in (False, True) if turn % 2 == 0 else (True, False):
            found[is_watched] = drained(_again(url, next_url), seconds, most, is_watched=is_watched)
            rows.append(("watched" if is_watched else "alone", *found[is_watched].row))
            print("  ".join(rows[-1]), flush=True)
        costs.append(1 - found[True].rate / found[False].rate)
    columns = ("drain", "jobs/s", "worker", "dashboard", "viewers", "worker µs/job", "overviews/s")
    table(f"{name}: {VIEWERS} open overviews, processor seconds per second", columns, rows)
    print(f"{VIEWERS} viewers cost the drain, %: " + ", ".join(f"{100 * one:.1f}" for one in costs), flush=True)
    return Bar(f"{name}: {VIEWERS} overviews, share of the drain", median(costs), COST, at_least=False)


def _again(url: str, next_url: Callable[[], str]) -> str:
    """The jobs as they were filled in, in a folder; a database has more than all turns drain."""
    if not url.startswith("file:"):
        return url
    again = next_url()
    shutil.copytree(url.removeprefix("file:"), again.removeprefix("file:"))
    return again


def measure(name: str, options: argparse.Namespace) -> list[Bar]:
    bars: list[Bar] = []
    with new_url(name) as next_url:
        url, jobs = next_url(), options.jobs or JOBS[name]
        began = time.perf_counter()
        with open_store(url) as store:
            fill(store, jobs)
        print(f"\n{name}: {jobs:,} jobs in {time.perf_counter() - began:.0f} s", flush=True)
        if "drain" in options.measure:
            bars.append(measure_drain(name, url, next_url, options.seconds, options.turns))
        if "pages" in options.measure:
            bars.append(measure_pages(name, url))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="which stores")
    parser.add_argument("--jobs", type=int, help="in each store, instead of the full number")
    parser.add_argument("--measure", default=",".join(PARTS), help="what is measured")
    parser.add_argument("--seconds", type=float, default=DRAIN_S, help="of each drain, at most")
    parser.add_argument("--turns", type=int, default=TURNS, help="of drains, each without and with viewers")
    options = parser.parse_args()
    finish([bar for name in options.only.split(",") for bar in measure(name, options)])


if __name__ == "__main__":
    main()
