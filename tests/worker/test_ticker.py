"""Ticks in a worker: when it wakes up, whom it loses to, and what a store that is away costs."""

from __future__ import annotations

import errno
import logging
import threading
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from leasemill import App, Context, JobState
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Overlap, Schedule, ScheduleSpec, SkipReason, TickFire
from leasemill.operator.listing import late_schedules
from leasemill.store.base import Store
from leasemill.store.file.store import FileStore
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker import ticker
from leasemill.worker.housekeeping import Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.ticker import LOOK_BACK_S, LOOK_S, STAGGER_US, TickChore, Ticker
from tests.worker.support import FaultyStore, drained, until, working

MINUTE_S = 60


class Hand:
    """A worker's ticker, with a monotonic clock that moves with the wall."""

    def __init__(self, store: Store, clock: ManualClock, app: App | None = None, name: str = "me") -> None:
        self.metrics = Metrics()
        app = app or App("memory:", store=store)
        self.ticker = Ticker(name, app.schedules, store, self.metrics, lambda: clock.now() / SECOND)
        self.chore = TickChore(self.ticker)
        self._clock = clock

    def run(self) -> None:
        self.chore.done_at = self._clock.now() / SECOND
        self.ticker.run()

    @property
    def waits_s(self) -> float:
        return self.chore.due_at - self._clock.now() / SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_900_000_800 * SECOND)  # 18:00:00


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(clock)


def set_schedule(store: Store, name: str = "tidy", every_s: int = MINUTE_S, zone: str = "UTC") -> None:
    spec = ScheduleSpec(name, f"@every {every_s}s", zone, JobSpec("", "q", "k"), Overlap.ALLOW)
    wall = store.time()
    store.run(c.SetSchedule(spec, (wall // (every_s * SECOND) + 1) * every_s * SECOND, wall, "ada", "why"))


def made(store: Store) -> list[str]:
    return [job.spec.id for job in store.jobs(limit=1_000).jobs]


@rule("P9")
def test_it_waits_until_the_next_tick_and_no_longer_than_a_look(store: FaultyStore, clock: ManualClock) -> None:
    hand = Hand(store, clock)
    assert hand.chore.due_at < 0  # at once
    hand.run()
    assert hand.waits_s == LOOK_S
    set_schedule(store)
    clock.advance(s=57)
    hand.run()
    assert 3 <= hand.waits_s < 3 + STAGGER_US / SECOND
    clock.advance(s=hand.waits_s)
    clock.advance(us=1)  # what was lost in the conversion
    assert hand.waits_s < 0
    hand.run()
    assert made(store) == ["cron/tidy/2030-03-17T18:01:00Z"]
    assert hand.metrics.ticks_fired == 1


@rule("P9")
def test_a_tick_is_fired_in_the_round_after_it_is_due_though_time_goes_on_within_it(
    store: FaultyStore, clock: ManualClock
) -> None:
    def monotonic() -> float:
        clock.advance(us=1)  # it moves between any two looks
        return clock.now() / SECOND

    set_schedule(store, every_s=3)
    metrics = Metrics()
    chore = TickChore(Ticker("me", App("memory:", store=store).schedules, store, metrics, monotonic))
    housekeeping = Housekeeping("me", [chore], metrics, jitter=lambda: 1.0, on_end=lambda _: None, monotonic=monotonic)
    wait_s = housekeeping.round()
    assert 0 < wait_s <= 3 + STAGGER_US / SECOND
    clock.advance(s=wait_s)
    assert housekeeping.round() > 0
    assert made(store) == ["cron/tidy/2030-03-17T18:00:03Z"]


def test_workers_wake_up_a_little_apart(store: FaultyStore, clock: ManualClock) -> None:
    set_schedule(store, every_s=3)
    waits = set()
    for number in range(20):
        hand = Hand(store, clock, name=f"worker-{number}")
        hand.run()
        waits.add(hand.waits_s)
    assert len(waits) > 15
    assert max(waits) - min(waits) < STAGGER_US / SECOND


def test_an_idle_look_reads_the_time_and_the_next_tick(store: FaultyStore, clock: ManualClock) -> None:
    for number in range(50):
        set_schedule(store, f"schedule-{number}", 3_600)
    hand = Hand(store, clock)
    hand.run()
    store.sent.clear()
    hand.run()
    assert [type(command) for command in store.sent] == [c.GetTime, c.NextTick]


@rule("P2", "P3")
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_store_that_is_away_loses_no_tick_and_makes_none_twice(
    store: FaultyStore, clock: ManualClock, fault: str
) -> None:
    set_schedule(store)
    hand = Hand(store, clock)
    hand.run()
    clock.advance(s=60)
    store.fail(c.FireTicks, fault)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        hand.run()
    assert 0 <= hand.waits_s <= LOOK_S
    store.is_away = True
    for _ in range(20):
        with pytest.raises(Unavailable):
            hand.run()
        assert 0 <= hand.waits_s <= LOOK_S
    store.is_away = False
    hand.run()
    assert made(store) == ["cron/tidy/2030-03-17T18:01:00Z"]


def test_it_waits_after_an_error_of_the_system_as_after_one_of_the_store(
    store: FaultyStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(schedule: Schedule, wall: int) -> TickFire:
        raise OSError(errno.EMFILE, "Too many open files")  # of the time zone's file

    set_schedule(store)
    hand = Hand(store, clock)
    hand.run()
    clock.advance(s=MINUTE_S + 1)
    monkeypatch.setattr(ticker, "fire_of", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        hand.run()
    assert 0 < hand.waits_s <= LOOK_S
    monkeypatch.undo()
    hand.run()
    assert len(made(store)) == 1


def test_a_schedule_that_cannot_be_computed_here_holds_up_no_other(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    set_schedule(store, "far", zone="Mars/Olympus")
    set_schedule(store)
    hand = Hand(store, clock)
    clock.advance(s=60)
    with caplog.at_level(logging.ERROR):
        hand.run()
        hand.run()
    assert made(store) == ["cron/tidy/2030-03-17T18:01:00Z"]
    assert [record.getMessage()[:33] for record in caplog.records] == ["schedule far cannot be used here:"]
    assert hand.waits_s == LOOK_S


def test_a_declaration_that_is_refused_is_logged_and_the_others_are_set(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("memory:", store=store)
    store.acquire([c.AcquireRequest("offsets", "lane", 0, "w", "token")])

    @app.cron("@daily")
    @app.job(queue="offsets")
    def wrong() -> None: ...

    @app.cron("@daily")
    @app.job
    def right() -> None: ...

    with caplog.at_level(logging.ERROR):
        Hand(store, clock, app).run()
    assert [one.name for one in app.schedules.list()] == ["right"]
    assert "used with acquire" in caplog.text


@rule("P3")
def test_clocks_that_are_ten_minutes_apart_fire_each_tick_once() -> None:
    """As readers of a clock that jumps: the one ahead fires early, the one behind finds everything moved."""
    clock = ManualClock(1_900_000_800 * SECOND)
    store = MemoryStore(clock)
    set_schedule(store)
    hands = [Hand(store, clock, name=f"worker-{number}") for number in range(3)]
    for minute in range(30):
        for hand, skew_s in zip(hands, (-600, 0, 600), strict=True):
            clock.advance(s=skew_s)
            hand.run()
            clock.advance(s=-skew_s)
        assert len(made(store)) == len(set(made(store))), minute
        clock.advance(s=60)
    ids = made(store)
    assert ids[1:] == [f"cron/tidy/2030-03-17T18:{minute:02d}:00Z" for minute in range(11, 40)]


def test_a_thousand_schedules_at_midnight_are_one_call(store: FaultyStore, clock: ManualClock) -> None:
    for number in range(1_000):
        set_schedule(store, f"schedule-{number}", 3_600)
    hand = Hand(store, clock)
    hand.run()
    clock.advance(s=3_600)
    hand.run()
    assert len(made(store)) == 1_000
    assert len(store.commands(c.FireTicks)) == 1


@rule("P2")
def test_threads_that_race_fire_each_tick_once(tmp_path: Path) -> None:
    clock = ManualClock(1_900_000_800 * SECOND)
    stores: list[Store] = [FileStore(tmp_path, clock=clock) for _ in range(3)]
    for name in ("a", "b"):
        set_schedule(stores[0], name)
    hands = [Hand(store, clock, name=f"worker-{number}") for number, store in enumerate(stores)]
    for _ in range(40):
        clock.advance(s=60)
        threads = [threading.Thread(target=hand.run) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = made(stores[0])
    assert len(ids) == len(set(ids)) == 80
    assert sum(hand.metrics.ticks_fired for hand in hands) == 80
    for store in stores:
        store.close()


async def test_a_worker_fires_ticks_as_time_goes_by(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    app = App("memory:", store=store)
    ticks: list[str] = []

    @app.cron(timedelta(seconds=1))
    @app.job
    async def ping(ctx: Context) -> None:
        ticks.append(ctx.job_id)

    async with working(app, concurrency=2) as worker:
        await until(lambda: len(ticks) >= 2, "two ticks")
        store.is_away = True
        await until(lambda: worker.metrics.unavailable > 2, "failures")
        count = len(ticks)
        store.is_away = False
        await until(lambda: len(ticks) > count + 1, "ticks after the store came back")
    assert len(ticks) == len(set(ticks))
    assert worker.metrics.ticks_fired >= len(ticks)


class Berlin(tzinfo):
    """A zone whose rules are those of the database that is installed now."""

    hours = 1

    def utcoffset(self, _at: datetime | None) -> timedelta:
        return timedelta(hours=self.hours)

    def dst(self, _at: datetime | None) -> timedelta:
        return timedelta()

    def tzname(self, _at: datetime | None) -> str:
        return "CET"

    def fromutc(self, at: datetime) -> datetime:
        return (at + self.utcoffset(at)).replace(tzinfo=self)


@rule("P2", "P3")
@pytest.mark.parametrize(("hours", "following"), [(2, "2030-03-19T04:00:00Z"), (0, "2030-03-18T06:00:00Z")])
def test_a_zone_whose_rules_change_after_a_schedule_was_set_fires_each_tick_once(
    store: FaultyStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, hours: int, following: str
) -> None:
    """The tick on record is fired as it is; the one after it follows the rules of then."""
    zone = Berlin()
    monkeypatch.setattr("leasemill.api.cron.parse_zone", lambda _name: zone)
    app = App("memory:", store=store)

    @app.cron("0 6 * * *", tz="Europe/Berlin", overlap="allow")
    @app.job(queue="q")
    def tidy() -> None: ...

    hand = Hand(store, clock, app)
    hand.run()
    zone.hours = hours
    clock.advance(timedelta(hours=11))  # 05:00 UTC, 06:00 by the rules of yesterday
    for _ in range(3):
        hand.run()
    assert made(store) == ["cron/tidy/2030-03-18T05:00:00Z"]
    (info,) = app.schedules.list()
    assert info.last_at is not None
    clock.advance(info.next_at - info.last_at)
    hand.run()
    assert made(store) == ["cron/tidy/2030-03-18T05:00:00Z", f"cron/tidy/{following}"]


async def test_a_tick_whose_kind_no_code_declares_is_fired_and_its_job_waits_for_a_worker_that_does(
    store: FaultyStore, clock: ManualClock
) -> None:
    set_schedule(store)
    clock.advance(s=60)
    without, later = App(store=store), App(store=store)

    @without.job(queue="q")
    def other() -> None: ...

    @later.job(name="k", queue="q")
    def known() -> str:
        return "ran"

    Hand(store, clock, without).run()
    (tick,) = made(store)
    handle = other.enqueue()
    await drained(without)
    assert handle.status() is JobState.SUCCEEDED, "it is in nobody's way"
    assert without.handle(tick).status() is JobState.READY
    clock.advance(s=120)
    await drained(later)
    assert later.handle(tick).result(timeout=0) == "ran"


@rule("P10")
def test_a_schedule_that_an_earlier_version_moved_a_year_ahead_is_moved_back(
    store: FaultyStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is left by a worker whose clock was a year ahead: its latest tick is in a year, and so is its next."""
    set_schedule(store)
    year = timedelta(days=365)
    clock.advance(year)
    Hand(store, clock).run()
    clock.advance(-year)
    before = store.run(c.GetSchedule("tidy"))
    assert before is not None
    assert before.last_at is not None
    assert before.last_at > clock.now()
    assert set(late_schedules(store)) == {"tidy"}, "an alert, until a worker has seen it"
    hand = Hand(store, clock)
    hand.run()
    after = store.run(c.GetSchedule("tidy"))
    assert after is not None
    assert (after.next_at, after.revision) == (clock.now() + MINUTE_S * SECOND, before.revision + 1)
    assert (after.fired, after.skipped) == (before.fired, before.skipped), "its counts stay"
    assert "schedule tidy: its next tick was 2031-03-17T18:01:00" in caplog.text
    assert late_schedules(store) == {}
    clock.advance(s=60)
    hand.run()
    assert made(store)[-1] == "cron/tidy/2030-03-17T18:01:00Z"
    assert len(store.commands(c.SetSchedule)) == 2, "it is moved once"


@rule("P10")
def test_a_worker_that_runs_finds_a_schedule_that_is_too_far_ahead_within_minutes(
    store: FaultyStore, clock: ManualClock
) -> None:
    hand = Hand(store, clock)
    hand.run()
    spec = ScheduleSpec("tidy", "@every 60s", "UTC", JobSpec("", "q", "k"), Overlap.ALLOW)
    far = clock.now() + 400 * 86_400 * SECOND
    store.run(c.SetSchedule(spec, far, far - 1, "web", "set by an application whose clock was wrong"))
    clock.advance(s=LOOK_BACK_S)
    hand.run()
    schedule = store.run(c.GetSchedule("tidy"))
    assert schedule is not None
    assert schedule.next_at == clock.now() + MINUTE_S * SECOND


@rule("P10", "P3")
@pytest.mark.parametrize("back", [timedelta(hours=2), timedelta(hours=23)])
def test_after_a_clock_was_set_back_a_schedule_waits_and_fires_nothing_twice(
    store: FaultyStore, clock: ManualClock, back: timedelta
) -> None:
    set_schedule(store, every_s=3_600)
    for _ in range(30):
        clock.advance(s=3_600)
        Hand(store, clock).run()
    ids = made(store)
    clock.advance(-back)
    late = late_schedules(store)
    assert late["tidy"] == back // timedelta(microseconds=1), "it is an alert meanwhile"
    for _ in range(back // timedelta(hours=1)):
        clock.advance(s=3_600)
        Hand(store, clock).run()
    assert made(store) == ids
    clock.advance(s=3_600)
    Hand(store, clock).run()
    assert len(made(store)) == len(set(made(store))) == 31


@rule("P5", "L8")
def test_after_a_clock_was_set_forward_the_ticks_it_passed_are_missed(store: FaultyStore, clock: ManualClock) -> None:
    set_schedule(store)
    hand = Hand(store, clock)
    hand.run()
    clock.advance(timedelta(hours=2))
    hand.run()
    assert made(store) == ["cron/tidy/2030-03-17T20:00:00Z"]
    schedule = store.run(c.GetSchedule("tidy"))
    assert schedule is not None
    assert schedule.skipped == {SkipReason.MISSED: 119}
