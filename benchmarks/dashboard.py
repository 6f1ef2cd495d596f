"""How fast is every page of the dashboard while a worker drains, and what do ten open overviews cost the drain?

    python -m benchmarks.dashboard [--only file,postgres] [--jobs N] [--seconds N]

A store is filled: a tenth of its jobs have failed, and a tenth of the rest stand in 10,000 lanes. A worker in a process
of its own drains it; the dashboard is served by another, as `leasemill dashboard` serves it, and is asked over HTTP.
The time is to the first byte. Then the drain is measured without and with ten viewers, each of which follows the
events and fetches the overview when one comes, as a browser does; in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median

import httpx

from benchmarks.children import SPAWN, new_url
from benchmarks.report import Bar, finish, table
from leasemill import App, Worker
from leasemill.dashboard.pages import PAGES
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.opening import open_store

ROWS = ("file", "postgres")
JOBS = {"file": 200_000, "postgres": 1_000_000}
LANES = 10_000
BATCH = 1_000
SLOTS = 50
ASKED = 40
VIEWERS = 10
DRAIN_S = 10.0
TURNS = 3
FIRST_BYTE_MS = 200.0
COST = 0.05
ENOUGH = 150_000


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
    lane = f"lane-{number % LANES}" if queue == "work" and number % 10 == 0 else None
    return JobSpec(f"job-{number:07}", queue, "work", b'{"number":%d}' % number, lane, headers={"tenant": "north"})


# Who works and who serves ----------------------------------------------------------------------------------------


def _work_slowly(url: str, pipe: Connection) -> None:
    """At most a thousand jobs a second, so that there are some as long as pages are asked for."""
    _work(url, pipe, 0.05)


def _work(url: str, pipe: Connection, seconds: float = 0.0) -> None:
    app = App(url)

    @app.job(queue="work", name="work")
    async def work(number: int) -> None:
        await asyncio.sleep(seconds)

    worker = Worker(app, concurrency=SLOTS, handle_signals=False)
    threading.Thread(target=lambda: asyncio.run(worker.run()), daemon=True).start()
    pipe.send("runs")
    pipe.recv()
    os._exit(0)


def _serve(url: str, pipe: Connection) -> None:
    from leasemill.cli.dashboard import served  # noqa: PLC0415  (in the server's process alone)
    from leasemill.server.listening import bound_socket  # noqa: PLC0415

    with open_store(url) as store, bound_socket("127.0.0.1", 0) as listener:
        link, server = served(store, listener, "127.0.0.1", by="bench", on_sign_in=lambda _link: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        pipe.send(link)
        pipe.recv()
        server.should_exit = True
        thread.join()


@contextmanager
def process(function: Callable[[str, Connection], None], url: str) -> Iterator[str]:
    """A process that runs until it is asked to end; what it said when it was ready."""
    ours, theirs = SPAWN.Pipe()
    running = SPAWN.Process(target=function, args=(url, theirs))
    running.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        running.join(30)
        running.kill()


def signed_in(link: str) -> httpx.Client:
    client = httpx.Client(base_url=link.partition("/sign-in")[0], timeout=60)
    client.get(link)
    return client


# What is measured ------------------------------------------------------------------------------------------------


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


def drained(store: Store, seconds: float) -> float:
    """Jobs per second; there are enough of them."""
    while store.totals().counts[JobState.READY] < ENOUGH:
        first = store.totals().seq
        store.enqueue([_spec(JOBS["postgres"] + number, "work") for number in range(first, first + BATCH)])
    before, began = _done(store), time.perf_counter()
    time.sleep(seconds)
    return (_done(store) - before) / (time.perf_counter() - began)


def _done(store: Store) -> int:
    return store.totals().counts[JobState.SUCCEEDED]


def _view(link_client: httpx.Client, stop: threading.Event) -> None:
    """Follows the events and fetches the overview, as the page's script does."""
    while not stop.is_set():
        with link_client.stream("GET", "/events") as events:
            for line in events.iter_lines():
                if stop.is_set():
                    return
                if line.startswith("data:"):
                    link_client.get("/", headers={"Leasemill-Part": "1"})
                    time.sleep(0.9)


@contextmanager
def viewers(link: str) -> Iterator[None]:
    first = signed_in(link)
    stop = threading.Event()
    clients = [httpx.Client(base_url=first.base_url, cookies=first.cookies, timeout=60) for _ in range(VIEWERS)]
    threads = [threading.Thread(target=_view, args=(client, stop)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measure(name: str, url: str, jobs: int, seconds: float) -> list[Bar]:
    with open_store(url) as store:
        began = time.perf_counter()
        fill(store, jobs)
        print(f"\n{name}: {jobs:,} jobs in {time.perf_counter() - began:.0f} s", flush=True)
        with process(_work_slowly, url):
            pages = _pages(url)
        rows = [(path, f"{p50:.0f}", f"{p95:.0f}") for path, p50, p95 in pages]
        table(f"{name}: time to the first byte", ("page", "p50 ms", "p95 ms"), rows)
        with process(_work, url):
            costs = [_cost(store, url, seconds) for _ in range(TURNS)]
    slowest = max(pages, key=lambda one: one[2])
    cost, each = median(costs), ", ".join(f"{100 * one:.1f}" for one in costs)
    print(f"ten viewers cost the drain {100 * cost:.1f} % (of {TURNS} turns: {each})")
    return [
        Bar(f"{name}: slowest page, p95, ms ({slowest[0]})", slowest[2], FIRST_BYTE_MS, at_least=False),
        Bar(f"{name}: ten overviews, share of the drain", cost, COST, at_least=False),
    ]


def _pages(url: str) -> list[tuple[str, float, float]]:
    with process(_serve, url) as link:
        client = signed_in(link)
        found = []
        for path in addresses():
            times = first_bytes(client, path)
            found.append((path, median(times), times[int(0.95 * len(times))]))
        return found


def _cost(store: Store, url: str, seconds: float) -> float:
    alone = drained(store, seconds)
    with process(_serve, url) as link, viewers(link):
        watched = drained(store, seconds)
    return 1 - watched / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--jobs", type=int, help="of each store, instead of the full number")
    parser.add_argument("--seconds", type=float, default=DRAIN_S, help="of each drain")
    options = parser.parse_args()
    bars: list[Bar] = []
    for name in options.only.split(","):
        with new_url(name) as next_url:
            bars += measure(name, next_url(), options.jobs or JOBS[name], options.seconds)
    finish(bars)


if __name__ == "__main__":
    main()
