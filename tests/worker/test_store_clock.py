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
from leasemill.operator.clocks import ahead_or_behind
from leasemill.store.base import Store
from leasemill.store.records import records
from leasemill.store.wal.store import FileStore
from leasemill.testing.rules import rule
from leasemill.worker.metrics import Metrics
from leasemill.worker.presence import WorkerPresence
from leasemill.worker.slots import Slots
from leasemill.worker.store_clock import StoreClock
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


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder with two workers, of which one has a wrong clock."""
    monkeypatch.setenv("LEASEMILL_URL", f"file:{tmp_path / 'jobs'}")
    store = FileStore(tmp_path / "jobs")
    for worker, ahead_s in (("right", 0.02), ("wrong", -7_200.0)):
        presence = WorkerPresence(worker, store.presence, 0.0)
        presence.publish(
            *(Slots(1, Metrics()), Metrics()),
            queues={},
            schedules=(),
            mismatched={},
            is_stopping=False,
            clock_ahead_s=ahead_s,
        )
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
