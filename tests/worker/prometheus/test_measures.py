"""A worker's metrics on `memory:` and `file:`; what must not hold a scrape up; who counts the queues."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill import App
from leasemill.errors import Invalid
from leasemill.kernel.commands import Expiration, PauseSchedule, SetSchedule
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.store.factory import open_store
from leasemill.store.worker_records import encode_record, records
from leasemill.testing.clock import ManualClock
from leasemill.worker.prometheus.catalogue import GROUPS_OPEN, QUEUE_OLDEST, QUEUE_PAUSED, SCHEDULE_LATE
from leasemill.worker.prometheus.endpoint import Address, Endpoint, parsed_address
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.prometheus.queues import QueueReader, counted, elected
from leasemill.worker.prometheus.samples import MOST_VALUES, OTHER
from tests.worker.prometheus.scraping import scrape
from tests.worker.prometheus.suite import PrometheusSuite, exported, is_elected, read_until, record
from tests.worker.support import FaultyStore, drained, until, working


class TestExporting(PrometheusSuite):
    @pytest.fixture(params=["memory", "file"])
    def app(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
        url = "memory:" if request.param == "memory" else f"file:{tmp_path / 'jobs'}"
        with open_store(url) as store:
            yield App(store=store)


def test_a_port_alone_is_of_the_loopback_interface() -> None:
    assert parsed_address("9464") == parsed_address(":9464") == Address("127.0.0.1", 9464)
    assert parsed_address("0.0.0.0:9464") == Address("0.0.0.0", 9464)
    assert parsed_address("[::1]:0") == Address("::1", 0)
    assert Address("::1", 80).url == "http://[::1]:80/metrics"


@pytest.mark.parametrize("text", ["", "host", "host:", "::1:9464", "127.0.0.1:70000", "http://here:1/metrics", "1:2:3"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="write HOST:PORT"):
        parsed_address(text)


def test_an_address_in_use_is_refused_with_what_to_do(app: App) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Invalid, match=f"--metrics 127.0.0.1:{port}: cannot listen there: .*another port"):
            Endpoint(Address("127.0.0.1", port), Measures(app).all)


async def test_a_scrape_does_not_wait_for_a_blocked_event_loop(app: App) -> None:
    scraped = threading.Event()

    @app.job
    async def blocks() -> None:
        assert scraped.wait(30), "nobody could read the metrics"

    blocks.enqueue()
    async with exported(app) as endpoint:

        def read() -> None:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and scrape(endpoint.address.url)("leasemill_leases_held") != 1:
                pass
            scraped.set()

        reading = threading.Thread(target=read)
        reading.start()
        worker = await drained(app)
        await asyncio.to_thread(reading.join)
    assert worker.metrics.succeeded == 1


async def test_kinds_that_anybody_can_invent_are_bounded(app: App, store: FaultyStore) -> None:
    @app.job
    async def known() -> None: ...

    store.enqueue([JobSpec(f"job-{number}", "default", f"kind-{number}", b"[[],{}]") for number in range(300)])
    known.enqueue()
    async with exported(app) as endpoint:
        async with working(app, mismatch_timeout=0.001, concurrency=50) as worker:
            await until(lambda: worker.metrics.failed + worker.metrics.released >= 300, "all to be given up")
        found = await asyncio.to_thread(scrape, endpoint.address.url)
    kinds = {labels["kind"] for _, labels in found.rows("leasemill_jobs_total")}
    assert len(kinds) == MOST_VALUES + 1
    assert {"known", OTHER} <= kinds
    assert found("leasemill_jobs_total") == found("leasemill_jobs_mismatched_total") + 1


async def test_counters_stay_and_gauges_go_when_a_worker_has_ended(app: App) -> None:
    @app.job
    async def noop() -> None: ...

    async with exported(app) as endpoint:
        for _ in range(2):
            noop.enqueue()
            await drained(app)
        found = await asyncio.to_thread(scrape, endpoint.address.url)
    assert found("leasemill_jobs_total", kind="noop", end="succeeded") == 2
    assert found("leasemill_reaper_runs_total") == 2
    assert not found.has("leasemill_slots")
    assert not found.has("leasemill_queues_elected")


def test_what_the_reaper_recovered_and_how_long_it_had_been_stuck(app: App) -> None:
    measures = Measures(app)
    measures.expired(
        [
            Expiration("a", "gone", 1, 3 * SECOND, JobState.READY),
            Expiration("b", "gone", 3, 7 * SECOND, JobState.DEAD),
        ]
    )
    found = measures.all()
    assert found.values["leasemill_leases_expired_total"] == {("ready",): 1, ("dead",): 1, ("succeeded",): 0}
    row = found.histograms["leasemill_reaper_stale_duration_seconds"][()]
    assert (sum(row[:-1]), row[-1]) == (2, 10.0)


def test_a_worker_that_stops_is_not_elected() -> None:
    stopping, young = record("a", 1.0, is_stopping=True), record("b", 2.0)
    assert elected([(stopping, 0.1), (young, 0.1)]) == "b"
    assert elected([(stopping, 0.1)]) is None
    assert elected([(young, 9.0)]) is None, "of a worker without a recent heartbeat nothing is expected"


def test_who_started_at_the_same_moment_is_told_apart_by_name() -> None:
    assert elected([(record("b", 1.0), 0.1), (record("a", 1.0), 0.1)]) == "a"


def test_an_elected_worker_that_cannot_reach_the_store_exports_no_queues_before_another_does(
    store: FaultyStore,
) -> None:
    now = 100.0
    store.enqueue([JobSpec("one", "mail", "send", delay_us=3600 * SECOND)])
    store.presence.publish("mill", encode_record(record("mill", 1.0)))
    ((own, age_s),) = records(store.presence)
    reader = QueueReader("mill", store, lambda: now)
    reader.round()
    assert is_elected(reader)
    store.is_away = True
    now += own.stale_after_s - 0.5
    store.presence.remove("mill")
    assert age_s < 0.4
    assert is_elected(reader), "nobody can have taken over yet"
    now += 0.5
    reader.round()
    assert not is_elected(reader)


def test_how_long_the_oldest_claimable_job_has_been_due(store: FaultyStore, clock: ManualClock) -> None:
    assert set(counted(store).values) == {SCHEDULE_LATE.name, GROUPS_OPEN.name}
    store.enqueue([JobSpec("one", "mail", "send"), JobSpec("later", "slow", "send", delay_us=60 * SECOND)])
    clock.advance(s=42)
    store.pause("slow", by="ann", reason="a test")
    found = counted(store).values
    assert found[QUEUE_OLDEST.name] == {("mail",): 42.0, ("slow",): 0.0}
    assert found[QUEUE_PAUSED.name] == {("mail",): 0, ("slow",): 1}


def test_how_late_the_most_overdue_schedule_is(store: FaultyStore) -> None:
    now = store.time()
    for name, next_at in (("early", now - 60 * SECOND), ("late", now - 90 * SECOND), ("next", now + 90 * SECOND)):
        spec = ScheduleSpec(name, "@hourly", "UTC", JobSpec("", "mail", "send"))
        store.run(SetSchedule(spec, next_at, now - 100 * SECOND, "ann", "a test"))
    assert counted(store).values[SCHEDULE_LATE.name][()] == pytest.approx(90, abs=5)
    store.run(PauseSchedule("late", "ann", "a test"))
    assert counted(store).values[SCHEDULE_LATE.name][()] == pytest.approx(60, abs=5)


def test_groups_that_are_over_are_not_counted_as_open(store: FaultyStore) -> None:
    for group in ("a", "b", "c"):
        store.create_group(group)
    store.seal_group("b")  # without members it is over
    assert counted(store).values[GROUPS_OPEN.name] == {(): 2}


async def test_a_worker_is_named_while_it_works_and_its_latest_reaper_run_can_be_read(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    @app.job
    async def noop() -> None: ...

    noop.enqueue()
    store.claim("gone", ["default"], 1)
    clock.advance(s=31)
    store.expire()
    async with exported(app) as endpoint, working(app, worker_id="orders-1"):
        found = await read_until(endpoint, lambda found: found.has("leasemill_worker_info"))
        assert found("leasemill_worker_info", worker="orders-1") == 1
        found = await read_until(endpoint, lambda found: found("leasemill_reaper_runs_total") == 1)
        assert found("leasemill_reaper_recovered_last_run") == 1
