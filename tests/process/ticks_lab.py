"""Two schedulers in processes of their own race for each tick while local clocks change. They read the store's time 20
minutes apart, in a year that is over: all that they take for due is due.

Each tick must make one job. Which ticks there are is asked of Debian's rule, written out. At full length:

    python -m tests.process.ticks_lab --store file --ticks 10000
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch
from zoneinfo import ZoneInfo

import click

from leasemill import App
from leasemill.api.cron import micros, next_tick_after
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import LONGEST_US
from leasemill.kernel.model import JobSpec
from leasemill.kernel.schedule import Missed, Overlap, ScheduleSpec, tick_id
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.testing.clock import ManualClock
from leasemill.worker.metrics import Metrics
from leasemill.worker.ticker import Ticker
from tests.api.cron_oracle import Years
from tests.process.rules_chaos import store_url

APART: Final = timedelta(minutes=10)
"""One is ahead by this much, the other behind."""
STEP: Final = timedelta(minutes=15)
BEGINS: Final = {
    "spring": datetime(2025, 3, 29, 21, tzinfo=UTC),
    "autumn": datetime(2025, 10, 25, 21, tzinfo=UTC),
    "half an hour": datetime(2025, 10, 4, 12, tzinfo=UTC),
}
"""A few hours before the clocks change: Berlin's, forwards and back, and Lord Howe's."""
SCHEDULES: Final = {
    "often": ("*/5 * * * *", "Europe/Berlin"),
    "thrice": ("*/20 * * * *", "Australia/Lord_Howe"),
    "at-night": ("15,45 0-3 * * *", "Europe/Berlin"),
    "early": ("0,10,20 2 * * *", "Australia/Lord_Howe"),
}
TICKS_A_DAY: Final = 371
LIMIT_S: Final = 900.0
PAGE: Final = 1_000


class Raced(NamedTuple):
    ticks: int
    firsts: tuple[int, ...]
    """How many ticks each scheduler fired: the one that is behind, and the one that is ahead."""
    wrong: list[str]


def race(url: str, begin: datetime, steps: int) -> Raced:
    with open_store(url) as store:
        now, call = micros(begin), JobSpec("", "ticks", "tick")
        for name, (expression, zone) in SCHEDULES.items():
            spec = ScheduleSpec(name, expression, zone, call, Overlap.ALLOW, Missed.ALL, catch_up_us=LONGEST_US)
            store.run(c.SetSchedule(spec, next_tick_after(expression, zone, now), now, "lab", "to race for it"))
        fired = _fire(url, begin, steps)
        expected = _expected(begin, begin + steps * STEP + APART)
        return Raced(len(expected), tuple(fired), list(_wrong(store, expected, sum(fired))))


def _fire(url: str, begin: datetime, steps: int) -> list[int]:
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=_schedule, args=(url, number, micros(first), steps, barrier, results))
        for number, first in enumerate((begin - APART, begin + APART))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        if process.exitcode != 0:
            process.kill()
            raise RuntimeError(f"a scheduler ended with {process.exitcode}")
    fired = dict(results.get() for _ in processes)
    return [fired[number] for number in range(len(processes))]


def _schedule(url: str, number: int, begin: int, steps: int, barrier: Any, results: Any) -> None:
    """Time goes on for both at once, and both look."""
    with open_store(url) as store:
        clock, metrics = ManualClock(begin), Metrics()
        ticker = Ticker(f"scheduler-{number}", App("memory:", store=store).schedules, store, metrics)
        with patch.object(store, "time", clock.now):
            for _ in range(steps):
                barrier.wait(LIMIT_S)
                clock.advance(STEP)
                ticker.run()
        results.put((number, metrics.ticks_fired))


def _expected(begin: datetime, until: datetime) -> dict[str, str]:
    """The id of every tick's job, and its schedule."""
    return {
        tick_id(name, micros(tick)): name
        for name, (expression, zone) in SCHEDULES.items()
        for tick in Years(ZoneInfo(zone), begin, until).debian(expression)
    }


def _wrong(store: Store, expected: dict[str, str], fired: int) -> Iterator[str]:
    made = set(_ids(store))
    yield from (f"{job_id} is lost" for job_id in sorted(expected.keys() - made))
    yield from (f"{job_id} is no tick" for job_id in sorted(made - expected.keys()))
    if fired != len(expected):
        yield f"both schedulers together fired {fired} times, and there are {len(expected)} ticks"
    for name in SCHEDULES:
        schedule, ticks = store.run(c.GetSchedule(name)), sum(one == name for one in expected.values())
        if schedule is None or schedule.fired != ticks or any(schedule.skipped.values()):
            yield f"{schedule} does not count its {ticks} ticks"


def _ids(store: Store) -> Iterator[str]:
    after: int | None = 0
    while after is not None:
        page = store.jobs(limit=PAGE, after=after)
        yield from (job.spec.id for job in page.jobs)
        after = page.after


@click.command()
@click.option("--store", type=click.Choice(["file", "postgresql"]), default="file", show_default=True)
@click.option("--ticks", default=10_000, show_default=True, help="From each of the beginnings on.")
def main(store: str, ticks: int) -> None:
    steps = -(-ticks * timedelta(days=1) // (TICKS_A_DAY * STEP))
    for name, begin in BEGINS.items():
        with ExitStack() as cleaning:
            folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="leasemill-ticks-")))
            raced = race(cleaning.enter_context(store_url(store, folder)), begin, steps)
        click.echo(f"{store}, {name}: {raced.ticks:,} ticks; first was the clock behind {raced.firsts[0]:,} times")
        for sentence in raced.wrong[:20]:
            click.echo(f"  WRONG: {sentence}")
        if raced.wrong:
            raise SystemExit(f"{len(raced.wrong)} faults")
    click.echo("holds: each tick made one job")


if __name__ == "__main__":
    main()
