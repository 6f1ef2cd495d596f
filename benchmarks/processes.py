"""What do several processes bring: `leasemill worker --processes 2` beside one, `--executor process` beside threads?

The jobs are enqueued while their queue is paused, the worker is started, and the queue resumed when all of it runs;
what counts is the time from the first lease to the last end, by the store's records. Each figure is the median of the
ratios to the first variant in the same round. CPU-bound handlers are pure Python: a process runs one at a time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from benchmarks.children import child, new_url
from benchmarks.report import Bar, table
from leasemill import App
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.worker_records import records

ROUNDS: Final = 5
STORES: Final = ("file", "postgres")
COUNTS: Final = {"noop": 20_000, "plain": 5_000, "burn": 1_000}
HANDLERS: Final = {"noop": "no-op handlers", "plain": "no-op `def` handlers", "burn": "CPU-bound handlers"}
BURN_ROUNDS: Final = 200_000
"""Some 4 or 5 ms."""
PATIENCE_S: Final = 300.0
PAGE: Final = 1_000
COMMAND: Final = (sys.executable, "-c", "from leasemill.cli import main; main()", "worker", "benchmarks.processes:app")
BY: Final = {"by": "benchmark", "reason": "to measure it"}

app = App()


@app.job(queue="noop")
async def noop(text: str) -> None:
    pass


@app.job(queue="plain")
def plain(text: str) -> None:
    pass


@app.job(queue="burn")
def burn(text: str) -> int:
    total = 0
    for number in range(BURN_ROUNDS):
        total += number & 7
    return total


class Variant(NamedTuple):
    name: str
    options: Sequence[str]
    processes: int = 1


ONE: Final = Variant("one process", ())
TWO: Final = Variant("--processes 2", ("--processes", "2"), 2)
IN_THREADS: Final = Variant("in threads", ())
IN_PROCESSES: Final = Variant("--executor process", ("--executor", "process"))


def rate(url: str, kind: str, options: Sequence[str], processes: int) -> float:
    """Jobs a second."""
    with open_store(url) as store:
        with app.bound_to(store):
            store.pause(kind, **BY)
            job = app.jobs[kind]
            job.enqueue_many(job.call(text="x" * 200) for _ in range(COUNTS[kind]))
        worker = subprocess.Popen([*COMMAND, "--url", url, "--queue", kind, "--log-level", "error", *options])
        try:
            _await(lambda: len(records(store.presence)) >= processes)
            time.sleep(1.0)
            store.resume(kind, **BY)
            _await(lambda: _succeeded(store) >= COUNTS[kind])
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()
        return COUNTS[kind] / _took_s(store)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done in {PATIENCE_S:g} s")
        time.sleep(0.2)


def _succeeded(store: Store) -> float:
    """As the workers publish it every two seconds: asking the store would take part in what is measured."""
    return sum(record.counters["succeeded"] for record, _ in records(store.presence))


def _took_s(store: Store) -> float:
    first, last = 2**63, 0
    after: int | None = 0
    while after is not None:
        page = store.jobs(c.JobFilter(), limit=PAGE, after=after)
        for job in page.jobs:
            (execution,) = job.executions
            assert execution.finished_at is not None
            first, last = min(first, execution.leased_at), max(last, execution.finished_at)
        after = page.after
    return (last - first) / SECOND


def compared(store: str, kind: str, variants: Sequence[Variant]) -> dict[str, tuple[float, float]]:
    """By variant, its rate and its ratio to the first."""
    found: dict[str, list[float]] = {variant.name: [] for variant in variants}
    with new_url(store) as url:
        for number in range(ROUNDS):
            turn = number % len(variants)
            for variant in (*variants[turn:], *variants[:turn]):
                found[variant.name].append(child(rate, url(), kind, variant.options, variant.processes))
    first = found[variants[0].name]
    return {
        name: (median(rates), median(one / other for one, other in zip(rates, first, strict=True)))
        for name, rates in found.items()
    }


def measured() -> list[Bar]:
    bars: list[Bar] = []
    for store in STORES:
        burn = _shown(store, "burn", (ONE, TWO))
        noop = _shown(store, "noop", (ONE, TWO))
        _shown(store, "plain", (IN_THREADS, IN_PROCESSES))
        bars.append(Bar(f"{store}, {HANDLERS['burn']}: {TWO.name}, of one", burn[TWO.name][1], 1.5))
        bars.append(Bar(f"{store}, {HANDLERS['noop']}: {TWO.name}, of one", noop[TWO.name][1], 0.95))
    return bars


def _shown(store: str, kind: str, variants: Sequence[Variant]) -> dict[str, tuple[float, float]]:
    found = compared(store, kind, variants)
    table(
        f"{store}: {COUNTS[kind]:,} {HANDLERS[kind]}, medians of {ROUNDS} rounds",
        ("", "jobs/s", f"of {variants[0].name}", "µs for each job"),
        [
            (name, f"{a_second:,.0f}", f"{ratio:.2f}", f"{1e6 / a_second:,.0f}")
            for name, (a_second, ratio) in found.items()
        ],
    )
    return found
