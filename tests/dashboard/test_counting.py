"""What charts and rates are made of: readings, rings, samples and shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from leasemill.dashboard.charts import HEIGHT, WIDTH, Series, chart, nice_ceiling, short_number, window_s
from leasemill.dashboard.history import SPANS, Dot, History, Span, TotalsAt
from leasemill.dashboard.live import Streams
from leasemill.dashboard.sampler import (
    COUNTED_WITHIN_S,
    KEPT_UP_S,
    KEPT_UP_SHARE,
    SHARE_OF_TIME,
    Quantiles,
    Sampler,
    quantiles,
    timings,
)
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.readings import Pulse
from leasemill.store.worker_records import WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock
from tests.lab.processes import wait_until

QUARTER, HOURS, DAYS = SPANS
PATIENCE_S = 60.0


def totals_at(second: float, *, arrived: int = 0, waiting: int = 0, running: int = 0) -> TotalsAt:
    return TotalsAt(round(second * SECOND), waiting, running, 0, arrived, 0, 0, 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore(clock) as opened:
        yield opened


# Rings -----------------------------------------------------------------------------------------------------------


def test_a_ring_keeps_the_latest_reading_of_each_slot_and_no_more_than_its_span() -> None:
    history = History()
    for second in range(3_000):
        history.add(totals_at(second, arrived=second))
    readings = history.readings(QUARTER)
    assert len(readings) == QUARTER.slots + 1
    assert [one.at // SECOND % QUARTER.slot_s for one in readings[:-1]] == [QUARTER.slot_s - 1] * QUARTER.slots
    assert len(history.readings(HOURS)) == 3_000 // HOURS.slot_s


def test_a_rate_is_what_a_count_rose_by_in_the_time_between() -> None:
    history = History()
    for second, arrived in ((0, 0), (5, 50), (10, 50), (15, 80)):
        history.add(totals_at(second, arrived=arrived))
    assert [dot.value for dot in history.rates(QUARTER, lambda one: one.arrived)] == [10.0, 0.0, 6.0]


def test_a_gap_and_a_count_that_fell_are_not_known() -> None:
    history = History()
    for second, arrived in ((0, 0), (5, 50), (600, 60), (605, 10)):
        history.add(totals_at(second, arrived=arrived))
    assert [dot.value for dot in history.rates(QUARTER, lambda one: one.arrived)] == [10.0, None, None]


def test_a_long_span_is_drawn_from_finer_readings_while_the_history_is_young() -> None:
    history = History()
    spans = []
    for second in range(0, 9 * 3_600, 5):
        history.add(totals_at(second, arrived=second))
        if second in (600, 3 * 3_600, 9 * 3_600 - 5):
            spans.append(history.drawn(DAYS)[0])
    assert spans == [QUARTER, HOURS, DAYS]
    assert history.drawn(QUARTER)[0] is QUARTER
    assert {dot.value for dot in history.rates(DAYS, lambda one: one.arrived)} == {1.0}


def test_jobs_out_are_those_that_arrived_and_neither_wait_nor_run() -> None:
    history = History()
    history.add(totals_at(0, arrived=100, waiting=90, running=10))
    history.add(totals_at(10, arrived=150, waiting=60, running=20))
    assert history.recent_rate(lambda one: one.left) == 7.0
    assert History().recent_rate(lambda one: one.left) is None


# Samples ---------------------------------------------------------------------------------------------------------


def test_a_sample_counts_what_there_is(store: MemoryStore, clock: ManualClock) -> None:
    sampler = Sampler(store)
    store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(10)])
    assert sampler.sample().oldest_due_at == clock.now()
    clock.advance(s=10)
    for lease in store.claim("worker", ["mail"], 4):
        store.ack([c.AckReport(lease.job.id, lease.token)])
    sample = sampler.sample()
    assert sampler.latest is sample
    assert (sample.number, sample.totals.seq, sample.live_workers) == (2, 10, 0)
    assert sampler.history.recent_rate(lambda one: one.left) == 0.4
    assert sample.queue_rates == {"mail": 0.4}


class Dear(MemoryStore):
    """Counting takes a second of the time that is returned by `seconds`."""

    at_s = 0.0

    def totals(self) -> c.Totals:
        self.at_s += 1.0
        return super().totals()

    def pulse(self) -> Pulse:
        totals = super().totals()
        return Pulse(totals.seq, totals.fence, totals.counts[JobState.LEASED])

    def seconds(self) -> float:
        return self.at_s


def test_what_takes_long_to_count_is_counted_for_a_fiftieth_of_the_time_and_reckoned_meanwhile(
    clock: ManualClock,
) -> None:
    with Dear(clock) as store:
        sampler = Sampler(store, store.seconds)
        store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(10)])
        counted = sampler.estimate()
        assert (counted.is_estimated, counted.totals.counts[JobState.READY]) == (False, 10)
        clock.advance(s=1)
        store.enqueue([JobSpec(f"more-{number}", "mail", "send") for number in range(5)])
        first, *_ = store.claim("worker", ["mail"], 3)
        store.ack([c.AckReport(first.job.id, first.token)])
        store.at_s += SHARE_OF_TIME - 1
        estimated = sampler.estimate()
        assert estimated.is_estimated
        assert (estimated.number, estimated.counted_at) == (counted.number + 1, counted.at)
        assert estimated.totals.counts == store.totals().counts | {JobState.SUCCEEDED: 0}
        assert sampler.history.readings(QUARTER)[-1].left == 1
        store.at_s += 1
        again = sampler.estimate()
        assert (again.is_estimated, again.totals) == (False, MemoryStore.totals(store))


class Behind(Dear):
    """A copy that would have to catch up, for whatever is asked of it."""

    def time(self) -> int:
        raise AssertionError("read while it is behind")


def test_beside_a_worker_that_is_faster_than_the_copy_all_is_estimated_for_a_minute(clock: ManualClock) -> None:
    with Dear(clock) as store:
        sampler = Sampler(store, store.seconds)
        store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(10)])
        counted = sampler.sample()
        store.__class__ = Behind
        store.at_s += SHARE_OF_TIME + 1
        estimated = sampler.estimate(Pulse(14, 5, 2))
        assert (estimated.totals.counts[JobState.READY], estimated.totals.counts[JobState.LEASED]) == (9, 2)
        assert estimated.at == counted.at + (SHARE_OF_TIME + 1) * SECOND
        assert (estimated.totals.seq, estimated.totals.fence, estimated.counted_at) == (14, 5, counted.at)
        store.__class__ = Dear
        store.at_s += COUNTED_WITHIN_S
        again = sampler.estimate(Pulse(14, 5, 2))
        assert (again.is_estimated, again.totals.seq) == (False, 10)


class Followed(MemoryStore):
    """Notes for how long it was to keep up."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.within: list[float | None] = []

    def keep_up(self, within_s: float | None = None) -> Pulse | None:
        self.within.append(within_s)
        return None


def test_a_copy_keeps_up_for_a_share_of_the_time_until_a_page_is_read_from_it(clock: ManualClock) -> None:
    with Followed(clock) as store:
        sampler = Sampler(store)
        sampler.watched()
        wait_until(lambda: len(store.within) > 2, "keeping up", PATIENCE_S)
        assert set(store.within) == {KEPT_UP_SHARE * KEPT_UP_S}
        sampler.watched(is_read=True)
        wait_until(lambda: store.within[-1] is None, "keeping up with all", PATIENCE_S)
        sampler.close()


def test_expiries_and_refusals_are_added_up_over_workers_that_come_and_go(store: MemoryStore) -> None:
    def publish(worker: str, refused: float, recovered: float) -> None:
        counters = {"refused": refused, "reaper_recovered": recovered}
        record = WorkerRecord(worker, "host", 1, 0.0, 0.0, 1.0, {}, 1, False, [], counters, instance=worker)
        store.presence.publish(worker, encode_record(record))

    sampler = Sampler(store)
    publish("one", 100, 50)  # from before anybody looked
    sampler.sample()
    publish("one", 103, 50)
    publish("two", 2, 7)
    sampler.sample()
    store.presence.remove("one")
    sampler.sample()
    publish("one", 104, 50)  # the same process: nobody heard of it for a while
    sampler.sample()
    latest = sampler.history.readings(QUARTER)[-1]
    assert (latest.refused, latest.expired) == (6, 7)


def test_waits_and_runs_are_of_jobs_that_ended_lately(store: MemoryStore, clock: ManualClock) -> None:
    assert timings(store) == (Quantiles(), Quantiles())
    store.enqueue([JobSpec("late", "mail", "send", delay_us=5 * SECOND), JobSpec("waits", "other", "send")])
    clock.advance(s=8)
    (lease,) = store.claim("worker", ["mail"], 1)
    clock.advance(s=1)
    store.start([c.StartReport("late", lease.token)])
    clock.advance(s=2)
    store.ack([c.AckReport("late", lease.token)])
    assert timings(store) == (Quantiles(3 * SECOND, 3 * SECOND, 1), Quantiles(2 * SECOND, 2 * SECOND, 1))
    clock.advance(s=3_600)
    assert timings(store) == (Quantiles(), Quantiles())


def test_with_a_backlog_the_jobs_before_the_one_that_is_held_are_looked_at(
    store: MemoryStore, clock: ManualClock
) -> None:
    store.enqueue([JobSpec(f"job-{number:04}", "mail", "send") for number in range(1_000)])
    for lease in store.claim("worker", ["mail"], 100):
        store.start([c.StartReport(lease.job.id, lease.token)])
        clock.advance(us=1_000)
        store.ack([c.AckReport(lease.job.id, lease.token)])
    store.claim("worker", ["mail"], 5)
    waits, runs = timings(store)
    assert (waits.count, runs.count) == (100, 100)


def test_quantiles_are_values_that_were_there() -> None:
    assert quantiles(range(1, 101)) == Quantiles(50, 96, 100)
    assert quantiles([7]) == Quantiles(7, 7, 1)


@pytest.mark.parametrize("error", [Unavailable("no connection"), OSError("no connection")])
def test_a_store_that_is_away_ends_no_sampler(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sampler = Sampler(store)
    monkeypatch.setattr(store, "totals", lambda: (_ for _ in ()).throw(error))
    monkeypatch.setattr("leasemill.dashboard.sampler.WATCHED_INTERVAL_S", 0.001)
    sampler.watched()
    wait_until(lambda: sampler.trouble == "no connection", "the trouble to be noticed", PATIENCE_S)
    monkeypatch.undo()
    wait_until(lambda: sampler.latest is not None and sampler.trouble is None, "a sample", PATIENCE_S)
    sampler.close()


# Events ----------------------------------------------------------------------------------------------------------


async def test_an_event_is_sent_when_the_counts_have_changed_and_the_stream_can_be_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.dashboard.live.LOOK_S", 0.001)
    monkeypatch.setattr("leasemill.dashboard.live.OPEN_S", 3_600.0)
    sampler, streams = Sampler(store), Streams()
    sampler.sample()
    response = streams.open(sampler)
    assert response.media_type == "text/event-stream"
    events = aiter(response.body_iterator)
    assert await anext(events) == "retry: 3000\n\n"
    store.enqueue([JobSpec("one", "mail", "send")])
    sampler.sample()
    async with asyncio.timeout(60):
        assert str(await anext(events)).startswith("event: change\ndata: ")
        streams.end()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    sampler.close()


async def test_an_event_is_sent_when_the_store_stops_answering(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.dashboard.live.LOOK_S", 0.001)
    monkeypatch.setattr("leasemill.dashboard.live.OPEN_S", 3_600.0)
    monkeypatch.setattr("leasemill.dashboard.live.STILL_S", 3_600.0)
    sampler, streams = Sampler(store), Streams()
    sampler.sample()
    monkeypatch.setattr(sampler, "watched", lambda: None)
    events = aiter(streams.open(sampler).body_iterator)
    assert await anext(events) == "retry: 3000\n\n"
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    sampler.trouble = "no connection"
    async with asyncio.timeout(60):
        assert str(await following).startswith("event: change\n")
    streams.end()


async def test_a_stream_ends_by_itself_and_says_that_the_page_shall_open_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that we are mounted in waits for open responses when it stops, and does not tell us."""
    monkeypatch.setattr("leasemill.dashboard.live.OPEN_S", 0.0)
    sampler = Sampler(store)
    events = [one async for one in Streams().open(sampler).body_iterator]
    assert events == ["retry: 3000\n\n", "event: again\ndata: \n\n"]
    sampler.close()


# Shapes ----------------------------------------------------------------------------------------------------------


def test_a_chart_is_drawn_inside_its_picture() -> None:
    now = 10_000 * SECOND
    dots = [Dot(now - second * SECOND, float(second)) for second in range(900, -1, -5)]
    drawn = chart("Waiting", "jobs", QUARTER.seconds, now, [Series("waiting", "ready", dots)])
    (line,) = drawn.lines
    assert drawn.most == 1_000
    assert drawn.first_at == now - 900 * SECOND
    assert line.latest == 0.0
    points = [tuple(map(float, point.split(","))) for point in line.strokes[0].removeprefix("M").split("L")]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert points[0] == (0.0, 12.0)
    assert points[-1] == (WIDTH, HEIGHT)


def test_a_line_is_cut_where_nothing_is_known() -> None:
    now = 1_000 * SECOND
    dots = [Dot(now - 30 * SECOND, 1.0), Dot(now - 20 * SECOND, None), Dot(now - 10 * SECOND, 2.0), Dot(now, 2.0)]
    drawn = chart("Out", "per second", 60, now, [Series("out", "out", dots)])
    assert len(drawn.lines[0].strokes) == 2
    assert drawn.first_at == now - 60 * SECOND


@pytest.mark.parametrize(
    ("span", "known_s", "seconds"),
    [(QUARTER, 0.0, 60), (QUARTER, 61.0, 120), (HOURS, 300.0, 300), (DAYS, 3_601.0, 3 * 3_600), (DAYS, 1e9, 604_800)],
)
def test_a_young_history_has_short_charts(span: Span, known_s: float, seconds: int) -> None:
    assert window_s(span, known_s) == seconds


def test_a_chart_without_readings_is_empty() -> None:
    drawn = chart("Out", "per second", 60, SECOND, [Series("out", "out", [])])
    assert drawn.is_empty
    assert drawn.most == 1.0


@pytest.mark.parametrize(("value", "ceiling"), [(0, 1), (0.3, 0.4), (1, 1), (1.1, 2), (24, 40), (55, 60), (99, 100)])
def test_an_axis_ends_at_a_round_number(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.5, "0.5"), (999, "999"), (1_200, "1.2k"), (3_000_000, "3M"), (2e9, "2G")]
)
def test_a_number_is_written_short(value: float, text: str) -> None:
    assert short_number(value) == text
