"""A machine's clock that is far from the store's: logged once, published, and shown; nothing is decided by it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill import App
from leasemill.cli import main
from leasemill.kernel.model import SECOND
from leasemill.operator.workers import ahead_or_behind
from leasemill.store.base import Store
from leasemill.store.file.clock import RealMachine
from leasemill.store.file.store import FileStore
from leasemill.store.worker_records import records
from leasemill.testing.rules import rule
from leasemill.worker.metrics import Metrics
from leasemill.worker.presence import WorkerPresence
from leasemill.worker.slots import Slots
from leasemill.worker.store_clock import SEEN_BY_ALL_S, StoreClock
from leasemill.worker.ticker import Ticker

NOW = 1_900_000_800 * SECOND
DAY_S = 86_400


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(365 * DAY_S, "365.0 d ahead of"), (-7_200, "2.0 h behind"), (60, "1.0 min ahead of")]
)
@rule("L8")
def test_a_clock_that_is_apart_is_logged_once_and_again_when_it_agrees(
    caplog: pytest.LogCaptureFixture, ahead_s: int, said: str
) -> None:
    wall_ns = [(NOW // SECOND + ahead_s) * 1_000_000_000]
    clock = StoreClock("me", lambda: wall_ns[0])
    for _ in range(3):
        clock.observe(NOW)
    assert clock.ahead_s == ahead_s
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"this machine's clock is {said} the store's" in record.getMessage()
    wall_ns[0] = NOW * 1_000
    clock.observe(NOW)
    clock.observe(NOW)
    assert "agrees with the store's again" in caplog.records[-1].getMessage()
    assert (len(caplog.records), clock.ahead_s) == (2, 0.0)


def test_clocks_that_a_time_service_keeps_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    for ahead_s in (-59, 0, 59):
        StoreClock("me", lambda ahead_s=ahead_s: (NOW // SECOND + ahead_s) * 1_000_000_000).observe(NOW)  # type: ignore[misc]
    assert caplog.records == []


def test_a_worker_compares_when_it_looks_for_ticks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FileStore(tmp_path) as store:
        clock = StoreClock("me", lambda: store.time() * 1_000 + 7_200 * 1_000_000_000)
        Ticker("me", App("memory:", store=store).schedules, store, Metrics(), clock=clock).run()
    assert "2.0 h ahead of the store's" in caplog.text


def publish(store: Store, worker: str, ahead_s: float) -> None:
    WorkerPresence(worker, store.presence, 0.0).publish(
        *(Slots(1, Metrics()), Metrics()),
        queues={},
        schedules=(),
        mismatched={},
        is_stopping=False,
        clock_ahead_s=ahead_s,
    )


class Stepped:
    """A worker on a folder, whose machine's clock can be stepped."""

    def __init__(self, store: FileStore, machine: SteppedMachine, worker: str = "me") -> None:
        self.clock = StoreClock(worker, lambda: machine.wall_us() * 1_000, lambda: machine.elapsed_s)
        monotonic = self.clock._monotonic
        self.ticker = Ticker(worker, App("memory:", store=store).schedules, store, Metrics(), monotonic, self.clock)


class SteppedMachine(RealMachine):
    step_us = 0
    elapsed_s = 0.0

    def wall_us(self) -> int:
        return super().wall_us() + self.step_us


HOUR_S = 3_600


@rule("W17")
@pytest.mark.parametrize("step_s", [2 * HOUR_S, 23 * HOUR_S])
def test_a_folder_follows_a_step_forward_of_the_machines_clock_that_a_worker_has_seen(
    tmp_path: Path, step_s: int
) -> None:
    machine = SteppedMachine()
    with FileStore(tmp_path, machine=machine) as store:
        worker = Stepped(store, machine)
        worker.ticker.run()
        machine.step_us = step_s * SECOND
        for elapsed_s in (0.0, SEEN_BY_ALL_S - 1):
            machine.elapsed_s = elapsed_s
            worker.ticker.run()
            assert abs(worker.clock.ahead_s - step_s) < 60, "not before the others can have seen it"
        machine.elapsed_s = SEEN_BY_ALL_S
        worker.ticker.run()
        assert abs(store.time() - machine.wall_us()) < 60 * SECOND
        worker.ticker.run()
        assert abs(worker.clock.ahead_s) < 60


@rule("W17", "L8")
@pytest.mark.parametrize("case", ["from its start", "alone", "by more than a day", "back"])
def test_a_folder_does_not_follow_a_worker_whose_clock_may_be_wrong_alone(tmp_path: Path, case: str) -> None:
    machine = SteppedMachine()
    with FileStore(tmp_path, machine=machine) as store:
        before = store.time()
        worker = Stepped(store, machine)
        if case != "from its start":
            worker.ticker.run()
        if case == "alone":
            publish(store, "other", 0.0)
        machine.step_us = {"by more than a day": 25, "back": -2}.get(case, 2) * HOUR_S * SECOND
        for look in range(10):
            machine.elapsed_s = 10.0 * look
            worker.ticker.run()
        assert abs(store.time() - before) < 60 * SECOND


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder with two workers, of which one has a wrong clock."""
    monkeypatch.setenv("LEASEMILL_URL", f"file:{tmp_path / 'jobs'}")
    store = FileStore(tmp_path / "jobs")
    for worker, ahead_s in (("right", 0.02), ("wrong", -7_200.0)):
        publish(store, worker, ahead_s)
    return store


def test_screens_name_the_worker_whose_clock_is_apart(store: Store) -> None:
    for command, said in (
        ("stats", "workers whose clock differs from the store's: wrong (2.0 h behind it)"),
        ("health", "clocks that differ from the store's: wrong (2.0 h behind it)"),
        ("workers", "the clock of wrong's machine is 2.0 h behind the store's"),
    ):
        shown = CliRunner().invoke(main, [command])
        assert shown.exit_code == 0
        assert said in shown.output
    stats = json.loads(CliRunner().invoke(main, ["stats", "--json"]).output)
    assert stats["clocks_apart"] == {"wrong": {"ahead_s": -7_200.0}}
    health = json.loads(CliRunner().invoke(main, ["health", "--json"]).output)
    assert (health["clocks_apart"], health["is_healthy"]) == ({"wrong": -7_200.0}, True)
    assert [record.clock_ahead_s for record, _ in records(store.presence)] == [0.02, -7_200.0]


def test_a_difference_is_written_with_its_direction() -> None:
    assert (ahead_or_behind(90.0), ahead_or_behind(-90.0)) == ("1.5 min ahead of", "1.5 min behind")
