"""Schedules on PostgreSQL: schedulers that race, in threads and processes, and transactions that are cut off."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from leasemill import App, Context
from leasemill.api.schedule_commands import set_schedule
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Overlap, Schedule, ScheduleSpec, TickFire
from leasemill.store.postgres.steps import Steps
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import schedules
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker.metrics import Metrics
from leasemill.worker.ticker import Ticker
from tests.process.ticks_lab import BEGINS, race
from tests.store.postgres.open_transaction import end_open_transactions
from tests.worker.support import until, working

START = 1_900_000_800 * SECOND
MINUTE = 60 * SECOND
TICKS = 40


def spec(name: str, overlap: Overlap = Overlap.ALLOW) -> ScheduleSpec:
    return ScheduleSpec(name, "* * * * *", "UTC", JobSpec("", "q", "k"), overlap)


def made(store: PostgresStore) -> list[str]:
    return [job.spec.id for job in store.jobs(limit=10_000).jobs]


def at_once(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@rule("P2", "P3")
@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.QUEUE])
def test_threads_that_race_fire_each_tick_once(postgres_url: str, overlap: Overlap) -> None:
    clock = ManualClock(START)
    stores = [PostgresStore(postgres_url, clock=clock) for _ in range(3)]
    for name in ("a", "b"):
        set_schedule(stores[0], spec(name, overlap), by="ada", reason="why")
    metrics = Metrics()
    tickers = [Ticker(f"w{n}", App("memory:", store=one).schedules, one, metrics) for n, one in enumerate(stores)]
    for _ in range(TICKS):
        clock.advance(us=MINUTE)
        at_once(*(ticker.run for ticker in tickers))
    ids = made(stores[0])
    assert len(ids) == len(set(ids)) == 2 * TICKS
    for name in ("a", "b"):
        found = stores[0].run(c.GetSchedule(name))
        assert found is not None
        assert (found.fired, found.skipped, found.next_at) == (TICKS, {}, START + (TICKS + 1) * MINUTE)
    for store in stores:
        store.close()


def fire_all(url: str, name: str, barrier: Any) -> None:
    """In a process of its own: every tick of an hour, as fast as it can."""
    clock = ManualClock(START)
    with PostgresStore(url, clock=clock) as store:
        ticker = Ticker(name, App("memory:", store=store).schedules, store, Metrics())
        barrier.wait()
        for _ in range(TICKS):
            clock.advance(us=MINUTE)
            ticker.run()


@rule("P2", "P3")
def test_processes_that_race_fire_each_tick_once(postgres_url: str) -> None:
    """Each has a wall of its own: whoever is ahead fires, the others find the schedule moved."""
    with PostgresStore(postgres_url, clock=ManualClock(START)) as store:
        set_schedule(store, spec("tidy"), by="ada", reason="why")
        spawn = multiprocessing.get_context("spawn")
        barrier = spawn.Barrier(2)
        workers = [spawn.Process(target=fire_all, args=(postgres_url, f"w{n}", barrier)) for n in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        ids = made(store)
        found = store.run(c.GetSchedule("tidy"))
        assert found is not None
        assert len(ids) == len(set(ids)) == found.fired == TICKS


@rule("P2", "P3", "P7")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("begin", BEGINS)
def test_schedulers_whose_clocks_are_apart_fire_each_tick_once(postgres_url: str, begin: str) -> None:
    """While local clocks change; see ticks_lab."""
    raced = race(postgres_url, BEGINS[begin], steps=24)
    assert raced.wrong == []
    assert raced.ticks > 80


@rule("P1")
def test_workers_that_set_it_for_the_first_time_at_once_set_it_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, clock=ManualClock(START)) for _ in range(4)]
    found: list[Schedule] = []

    def setting(store: PostgresStore) -> Callable[[], None]:
        return lambda: found.append(set_schedule(store, spec("tidy"), by="ada", reason="why"))

    at_once(*(setting(store) for store in stores))
    assert [one.revision for one in found] == [1] * 4
    assert len(stores[0].actions()) == 1
    for store in stores:
        store.close()


@rule("P2")
def test_a_tick_that_was_cut_off_before_its_record_made_no_job(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START)
    with PostgresStore(postgres_url, clock=clock) as store:
        set_schedule(store, spec("tidy", Overlap.QUEUE), by="ada", reason="why")
        clock.advance(us=MINUTE)
        fire = c.FireTicks([TickFire("tidy", 1, START + MINUTE, (START + MINUTE,), START + 2 * MINUTE)], START + MINUTE)

        def cut_off(*_: object) -> None:
            raise Unavailable("cut off")

        with monkeypatch.context() as patched:
            patched.setattr(schedules._Row, "write", cut_off)
            with pytest.raises(Unavailable):
                store.run(fire)
        assert made(store) == []
        (outcome,) = store.run(fire)
        assert isinstance(outcome, c.TickFired)
        assert list(outcome.job_ids) == made(store)


@rule("P2", "P3")
def test_a_connection_that_is_lost_in_the_middle_costs_no_tick(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the session after the job was inserted: the call is repeated, and fires once."""
    clock = ManualClock(START)
    with PostgresStore(postgres_url, clock=clock) as store:
        set_schedule(store, spec("tidy"), by="ada", reason="why")
        write, cuts = schedules._Row.write, [1]

        def lost(row: schedules._Row, events: Any) -> Steps[None]:
            if cuts:
                cuts.clear()
                end_open_transactions(admin)
            return write(row, events)

        monkeypatch.setattr(schedules._Row, "write", lost)
        clock.advance(us=MINUTE)
        fire = c.FireTicks([TickFire("tidy", 1, START + MINUTE, (START + MINUTE,), START + 2 * MINUTE)], START + MINUTE)
        (outcome,) = store.run(fire)
        assert isinstance(outcome, c.TickFired)
        assert made(store) == list(outcome.job_ids)


async def test_workers_fire_ticks_as_time_goes_by(postgres_url: str) -> None:
    ticks: list[str] = []

    def new_app() -> App:
        app = App(postgres_url)

        @app.cron("@every 1s")
        @app.job
        async def ping(ctx: Context) -> None:
            ticks.append(ctx.job_id)

        return app

    first, second = new_app(), new_app()
    async with working(first) as one, working(second) as other:
        await until(lambda: len(ticks) >= 4, "four ticks")
    assert len(ticks) == len(set(ticks))
    assert one.metrics.ticks_fired + other.metrics.ticks_fired >= len(ticks)
    first.close()
    second.close()
