"""`app.cron`, `app.schedules`, `ctx.tick`, and schedules in tests: `drain`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from leasemill import App, Context, JobState, NotFound
from leasemill.api.schedule_commands import tick_of
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.schedule import Missed, Overlap
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import drain, in_memory
from leasemill.testing.rules import rule

START = datetime(2030, 1, 31, 11, 58, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def app() -> App:
    return App("file:./must-not-be-opened")


@pytest.fixture
def clock(app: App) -> Iterator[ManualClock]:
    with in_memory(app) as clock:
        clock.advance(START - datetime.fromtimestamp(clock.now() / 1e6, UTC))
        yield clock


def declared(app: App) -> list[str]:
    """A job that runs every minute, and what its runs saw."""
    seen: list[str] = []

    @app.cron("* * * * *", args={"days": 3})
    @app.job(queue="maintenance")
    def tidy(ctx: Context, days: int, note: str = "") -> int:
        assert ctx.tick is not None
        seen.append(f"{ctx.tick:%H:%M}{note}")
        return days

    return seen


# Declaring -------------------------------------------------------------------------------------------------------


def test_a_declaration_touches_no_store_and_returns_the_job(app: App) -> None:
    declared(app)
    spec = app.schedules.declared["tidy"].spec()
    assert (spec.expression, spec.zone, spec.overlap, spec.missed) == ("* * * * *", "UTC", Overlap.SKIP, Missed.LATEST)
    assert (spec.call.queue, spec.call.kind, spec.call.payload) == ("maintenance", "tidy", b'{"days":3}')


def test_a_job_may_have_several_schedules_by_name(app: App) -> None:
    @app.job
    def poll(region: str) -> None: ...

    same = app.cron(timedelta(minutes=5), poll, name="poll-eu", args={"region": "eu"})
    app.cron("*/15 9-17 * * mon-fri", poll, name="poll-us", args={"region": "us"}, tz="America/New_York", jitter=30)
    assert same is poll
    eu, us = (app.schedules.declared[name].spec() for name in ("poll-eu", "poll-us"))
    assert (eu.expression, us.zone, us.jitter_us) == ("@every 300s", "America/New_York", 30_000_000)


def test_who_wants_all_missed_ticks_gets_a_queue_by_default(app: App) -> None:
    @app.cron("@daily", missed="all")
    @app.job
    def report() -> None: ...

    assert app.schedules.declared["report"].spec().overlap is Overlap.QUEUE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tz": "Berlin"}, "Europe/Berlin"),
        ({"overlap": "never"}, "skip, one, queue, allow"),
        ({"missed": "never"}, "latest, all, skip"),
        ({"jitter": -1}, "jitter"),
        ({"name": "no name"}, "not a name"),
        ({"args": {"weeks": 1}}, "weeks"),
        ({"args": {"days": "three"}}, "days"),
        ({"timezone": "UTC"}, "no option 'timezone'"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(app: App, options: dict[str, object], message: str) -> None:
    @app.job
    def tidy(days: int = 1) -> None: ...

    with pytest.raises(Invalid, match=message):
        app.cron("@daily", tidy, **options)  # type: ignore[call-overload]
    assert app.schedules.declared == {}


def test_wrong_expressions_and_wrong_order_are_refused(app: App) -> None:
    @app.job
    def tidy() -> None: ...

    with pytest.raises(Invalid, match="five fields"):
        app.cron("daily", tidy)
    with pytest.raises(Invalid, match=r"above @app\.job"):
        app.cron("@daily")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(Invalid, match="leave out"):
        app.cron("@daily", tidy.options(delay=5))
    app.cron("@daily", tidy)
    app.cron("@daily", tidy)  # its module was loaded again
    with pytest.raises(Invalid, match="declared twice"):
        app.cron("@hourly", tidy)


def test_an_annotation_may_name_what_is_defined_later(app: App) -> None:
    @app.cron("@daily")
    @app.job
    def tidy(what: Later | None = None) -> None: ...

    globals()["Later"] = str
    assert app.schedules.declared["tidy"].spec().call.payload == b"{}"


Later = str


# Running ---------------------------------------------------------------------------------------------------------


@rule("P5")
def test_drain_fires_what_is_due_and_never_moves_to_a_tick(app: App, clock: ManualClock) -> None:
    seen = declared(app)
    assert drain(app, clock).succeeded == 0  # sets it
    clock.advance(s=100)
    metrics = drain(app, clock)
    assert (metrics.succeeded, metrics.ticks_fired, seen) == (1, 1, ["12:00"])
    assert app.handle("cron/tidy/2030-01-31T12:00:00Z").status() is JobState.SUCCEEDED
    info = app.schedules.get("tidy")
    assert info is not None
    assert (info.last_at, info.fired, info.skipped) == (datetime(2030, 1, 31, 12, tzinfo=UTC), 1, {"missed": 1})
    assert drain(app, clock).ticks_fired == 0


def test_drain_until_fires_every_tick_on_the_way(app: App, clock: ManualClock) -> None:
    seen = declared(app)
    metrics = drain(app, clock, until=timedelta(minutes=5))
    assert seen == ["11:59", "12:00", "12:01", "12:02", "12:03"]
    assert metrics.ticks_fired == 5
    assert datetime.fromtimestamp(clock.now() / 1e6, UTC) == START + timedelta(minutes=5)
    drain(app, clock, until=START + timedelta(minutes=6))
    assert seen[5:] == ["12:04"]


def test_drain_until_also_runs_what_retries_on_the_way(app: App, clock: ManualClock) -> None:
    @app.cron(timedelta(minutes=10))
    @app.job
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    metrics = drain(app, clock, until=timedelta(minutes=20))
    assert (metrics.retried, metrics.succeeded) == (2, 2)


def test_until_needs_a_clock_and_a_zone(app: App, clock: ManualClock) -> None:
    declared(app)
    with pytest.raises(Invalid, match="clock"):
        drain(app, until=HOUR)
    with pytest.raises(Invalid, match="no time zone"):
        drain(app, clock, until=datetime(2030, 1, 1))  # noqa: DTZ001  (what is refused)


@rule("P1")
def test_a_worker_sets_what_differs_and_removes_nothing(app: App, clock: ManualClock) -> None:
    declared(app)
    app.schedules.set("other", "@daily", app.jobs["tidy"].call(1))
    drain(app, clock)
    drain(app, clock)
    assert [one.name for one in app.schedules.list()] == ["other", "tidy"]
    assert [action.reason for action in app.store.actions()] == ["declared in code", "set by the application"]


@rule("P1")
def test_versions_that_alternate_change_it_at_every_start_and_no_more(clock: ManualClock, app: App) -> None:
    old, new = App("memory:", store=app.store), App("memory:", store=app.store)
    declared(old)

    @new.cron("*/2 * * * *")
    @new.job
    def tidy() -> None: ...

    for version in (old, new, old, new):
        drain(version, clock)
    assert len(app.store.actions()) == 4
    info = app.schedules.get("tidy")
    assert info is not None
    assert (info.expression, info.revision) == ("*/2 * * * *", 4)


@rule("P1", "P5")
def test_a_deployment_that_changes_the_times_loses_no_tick_that_is_due(clock: ManualClock, app: App) -> None:
    old, new = App("memory:", store=app.store), App("memory:", store=app.store)
    declared(old)
    seen: list[str] = []

    @new.cron("@yearly")
    @new.job(queue="maintenance")
    def tidy(ctx: Context, days: int = 0) -> None:
        seen.append(f"{ctx.tick:%H:%M}")

    drain(old, clock)
    clock.advance(s=40)
    drain(new, clock)
    assert seen == ["11:59"]


def test_a_job_that_no_schedule_made_has_no_tick(app: App, clock: ManualClock) -> None:
    ticks: list[datetime | None] = []

    @app.job
    def plain(ctx: Context) -> None:
        ticks.append(ctx.tick)

    plain.enqueue()
    drain(app)
    assert ticks == [None]
    assert tick_of("cron/tidy/2030-01-31T12:00:00Z/0") is None
    assert tick_of("cron/tidy/2030-13-31T12:00:00Z") is None
    assert tick_of("cron/tidy/2030-01-31T12:00:00Z") == ("tidy", datetime(2030, 1, 31, 12, tzinfo=UTC))


@rule("P5")
@pytest.mark.parametrize(
    ("missed", "ran"),
    [("latest", ["31 12:00"]), ("all", ["30 18:00", "31 00:00", "31 06:00", "31 12:00"]), ("skip", [])],
)
def test_down_for_three_days(app: App, clock: ManualClock, missed: str, ran: list[str]) -> None:
    seen: list[str] = []

    @app.cron("0 */6 * * *", missed=missed, overlap="queue")  # type: ignore[call-overload, untyped-decorator]
    @app.job
    def tidy(ctx: Context) -> None:
        seen.append(f"{ctx.tick:%d %H:%M}")

    clock.advance(timedelta(days=-3))
    drain(app, clock)
    clock.advance(timedelta(days=3, minutes=5))
    drain(app, clock)
    assert seen == ran
    info = app.schedules.get("tidy")
    assert info is not None
    assert info.fired + info.skipped["missed"] == 13


@rule("P3")
@pytest.mark.parametrize("step", [HOUR, -HOUR, timedelta(days=-365)])
def test_a_wall_that_jumps_runs_no_tick_twice(app: App, clock: ManualClock, step: timedelta) -> None:
    seen = declared(app)
    drain(app, clock, until=timedelta(minutes=5))
    before = len(seen)
    clock.advance(step)
    drain(app, clock)
    clock.advance(-step)
    drain(app, clock, until=timedelta(minutes=70))
    assert len(seen) == len(set(seen)) > before


def test_a_machine_that_began_in_1970_goes_on_when_its_clock_is_right(app: App, clock: ManualClock) -> None:
    seen = declared(app)
    right = clock.now()
    clock.advance(us=3_600_000_000 - right)
    drain(app, clock)
    clock.advance(us=right - clock.now())
    drain(app, clock)
    drain(app, clock, until=timedelta(minutes=1))
    assert seen == ["11:58", "11:59"]


# At run time -----------------------------------------------------------------------------------------------------


def test_a_schedule_is_set_paused_resumed_fired_and_removed(app: App, clock: ManualClock) -> None:
    @app.job
    def report(number: int) -> int:
        return number

    made = app.schedules.set("report-42", "0 6 1 * *", report.call(42), tz="Europe/Berlin")
    assert made.next_at.isoformat() == "2030-02-01T06:00:00+01:00"
    assert (made.kind, made.queue, made.is_paused, made.last_at) == ("report", "default", False, None)
    assert app.schedules.get("report-42") == made
    assert app.schedules.get("other") is None
    assert app.schedules.pause("report-42", reason="month end").is_paused
    handle = app.schedules.fire("report-42")
    drain(app, clock)
    assert handle.result(0) == 42
    clock.advance(timedelta(days=60))
    resumed = app.schedules.resume("report-42")
    assert (resumed.is_paused, resumed.skipped) == (False, {"paused": 3})
    assert [reason for _, reason in resumed.skips] == ["paused"] * 3
    assert resumed.next_at.isoformat() == "2030-05-01T06:00:00+02:00"
    (first, second) = app.schedules.backfill(
        "report-42", datetime(2030, 2, 1, tzinfo=UTC), datetime(2030, 3, 31, tzinfo=UTC)
    )
    assert (first.id, second.id) == (
        "cron/report-42/2030-02-01T05:00:00Z",
        "cron/report-42/2030-03-01T05:00:00Z",
    )
    app.schedules.remove("report-42")
    assert app.schedules.list() == []


def test_what_is_not_there_is_not_found(app: App, clock: ManualClock) -> None:
    for act in (app.schedules.remove, app.schedules.pause, app.schedules.resume, app.schedules.fire):
        with pytest.raises(NotFound, match="no schedule 'tidy'"):
            act("tidy")


def test_a_backfill_of_what_is_to_come_or_of_too_much_is_refused(app: App, clock: ManualClock) -> None:
    declared(app)
    drain(app, clock)
    with pytest.raises(Invalid, match="only past times"):
        app.schedules.backfill("tidy", START, START + HOUR)
    with pytest.raises(Invalid, match="shorter time"):
        app.schedules.backfill("tidy", START - timedelta(days=30), START)
    with pytest.raises(Invalid, match="no time zone"):
        app.schedules.backfill("tidy", datetime(2030, 1, 1), START)  # noqa: DTZ001  (what is refused)


def test_a_call_with_an_id_of_its_own_is_refused(app: App, clock: ManualClock) -> None:
    @app.job
    def report() -> None: ...

    with pytest.raises(Invalid, match="job_id"):
        app.schedules.set("a", "@daily", report.options(job_id="mine").call())


def test_setting_from_two_requests_is_one_schedule_whatever_their_headers(app: App, clock: ManualClock) -> None:
    @app.job
    def report() -> None: ...

    for trace in ("1", "2"):
        app.schedules.set("a", "@daily", report.options(headers={"trace": trace}).call())
    found = app.store.run(c.GetSchedule("a"))
    assert found is not None
    assert (found.revision, found.spec.call.headers) == (1, {"trace": "1"})


def test_a_job_that_is_not_called_is_refused_with_what_to_write(app: App) -> None:
    @app.job
    def tidy() -> None: ...

    with pytest.raises(Invalid, match=r"write job\.call"):
        app.schedules.set("tidy", "@daily", tidy)  # type: ignore[arg-type]
