"""`leasemill cron`, and the ticks of schedules in `jobs explain` and `actions`, on a folder of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill import App
from leasemill.api.cron import micros
from leasemill.cli import main
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Overlap, ScheduleSpec, TickFire
from leasemill.operator.missing_job import explain_tick
from leasemill.store.base import Store
from leasemill.store.file.store import FileStore
from leasemill.worker.metrics import Metrics
from leasemill.worker.presence import WorkerPresence
from leasemill.worker.slots import Slots

SIX = micros(datetime(2000, 1, 31, 6, tzinfo=UTC))
DAY = 86_400 * SECOND
WHY = ("--reason", "because", "--by", "ada")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A folder with a schedule that was set long ago, was due twice, and is due every day since."""
    monkeypatch.setenv("LEASEMILL_URL", f"file:{tmp_path / 'jobs'}")
    with FileStore(tmp_path / "jobs") as store:
        call = JobSpec("", "maintenance", "clean_up", b'{"days":30}')
        spec = ScheduleSpec("clean_up", "0 6 * * *", "UTC", call)
        store.run(c.SetSchedule(spec, SIX, SIX - 1, "worker-1", "declared in code"))
        for tick in (SIX, SIX + DAY):
            store.run(c.FireTicks([TickFire("clean_up", 1, tick, (tick,), tick + DAY)], tick))
        yield store


def invoke(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result


def document(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--json").output)


def test_list_shows_the_last_tick_its_job_the_next_and_what_was_skipped(store: Store) -> None:
    header, row, _ = invoke("cron", "list").output.splitlines()
    assert header.split()[:3] == ["schedule", "times", "zone"]
    assert "clean_up  0 6 * * *  UTC   clean_up  2000-02-01 06:00:00 +0000  ready  2000-02-02 06:00:00 +0000" in row
    assert row.endswith("1      1 overlap")
    (one,) = document("cron", "list")
    assert (one["name"], one["last_job_state"], one["next_at"]) == ("clean_up", "ready", "2000-02-02T06:00:00Z")
    assert one["skipped"] == {"overlap": 1}


def test_a_schedule_that_no_worker_declares_any_more_is_named(store: Store) -> None:
    """One that an application set is not: it needs no worker that knows it."""
    spec = ScheduleSpec("report", "0 6 * * *", "UTC", JobSpec("", "mail", "report"))
    store.run(c.SetSchedule(spec, SIX, SIX - 1, "web", "set by the application"))
    app = App("memory:", store=store)

    @app.cron("0 6 * * *")
    @app.job
    def clean_up() -> None: ...

    said = "clean_up: no running worker declares it"
    assert said in invoke("cron", "list").output
    assert "report: declared" not in invoke("cron", "list").output
    assert [one["is_declared"] for one in document("cron", "list")] == [False, None]
    presence = WorkerPresence("w", store.presence, 0.0)
    declared: dict[str, Any] = {
        "schedules": app.schedules.declared,
        "queues": {},
        "mismatched": {},
        "clock_ahead_s": 0.0,
        "is_stopping": False,
    }
    presence.publish(Slots(1, Metrics()), Metrics(), **declared)
    assert said not in invoke("cron", "list").output
    assert document("cron", "show", "clean_up")["is_declared"] is True
    presence.withdraw()
    assert "no running worker declares it" in invoke("cron", "show", "clean_up").output
    assert "worker-1: declared in code" in invoke("cron", "show", "clean_up").output


def test_show_and_next(store: Store) -> None:
    shown = invoke("cron", "show", "clean_up").output
    assert 'clean_up, queue maintenance: {"days":30}' in shown
    assert "2000-02-01 06:00:00 +0000  overlap  cron/clean_up/2000-01-31T06:00:00Z" in shown
    lines = invoke("cron", "next", "clean_up", "--count", "2").output.splitlines()
    assert lines == ["2000-02-02 06:00:00 +0000", "2000-02-03 06:00:00 +0000"]
    assert document("cron", "next", "clean_up")["ticks"][0] == "2000-02-02T06:00:00+00:00"


def test_local_times_have_their_offset(store: Store) -> None:
    spec = ScheduleSpec("berlin", "0 6 * * *", "Europe/Berlin", JobSpec("", "q", "k"))
    store.run(c.SetSchedule(spec, SIX - 3600 * SECOND, SIX - DAY, "ada", "why"))
    assert "2000-01-31 06:00:00 +0100" in invoke("cron", "list").output


def test_pause_resume_fire_and_remove_are_recorded(store: Store) -> None:
    assert invoke("cron", "pause", "clean_up", *WHY).output == "schedule clean_up paused\n"
    assert "paused" in invoke("cron", "list").output
    assert "by ada: because" in invoke("cron", "show", "clean_up").output
    resumed = invoke("cron", "resume", "clean_up", *WHY).output
    assert "ticks went by while it was paused" in resumed
    assert "schedule clean_up fired: job cron/clean_up/20" in invoke("cron", "fire", "clean_up", *WHY).output
    assert invoke("cron", "remove", "clean_up", *WHY).output == "schedule clean_up removed\n"
    acts = document("actions", "--target", "cron/clean_up", "--by", "ada")
    assert [act["verb"] for act in acts] == ["remove_schedule", "fire", "resume_schedule", "pause_schedule"]
    assert invoke("cron", "list").output.splitlines()[1:] == []


def test_backfill_makes_what_is_missing(store: Store) -> None:
    made = invoke("cron", "backfill", "clean_up", "--from", "2000-01-30", "--to", "2000-02-01T12:00", *WHY).output
    assert made == "schedule clean_up: 2 jobs made; 1 tick made none, because the job exists\n"
    assert store.job("cron/clean_up/2000-01-30T06:00:00Z") is not None
    for wrong in (("--from", "monday", "--to", "2000-02-01"), ("--from", "2000-02-02", "--to", "2000-02-01")):
        invoke("cron", "backfill", "clean_up", *wrong, *WHY, code=2)


def test_an_unknown_name_gets_a_suggestion(store: Store) -> None:
    result = invoke("cron", "show", "cleanup", code=1)
    assert "did you mean 'clean_up'?" in result.output
    assert "reason" in invoke("cron", "pause", "clean_up", code=2).output


def test_explain_says_why_a_tick_made_no_job(store: Store) -> None:
    skipped = invoke("jobs", "explain", "cron/clean_up/2000-02-01T06:00:00Z").output
    assert "skipped because job 'cron/clean_up/2000-01-31T06:00:00Z' had not ended (overlap skip)" in skipped
    assert "cron backfill clean_up --from 2000-02-01T06:00:00Z" in skipped
    other = invoke("jobs", "explain", "cron/clean_up/2000-02-01T06:30:00Z").output
    assert "not a tick of '0 6 * * *' (UTC): the first after it is 2000-02-02 06:00:00 +0000" in other
    assert "no schedule 'gone'" in invoke("jobs", "explain", "cron/gone/2000-02-01T06:00:00Z").output
    assert "first set at" in invoke("jobs", "explain", "cron/clean_up/2000-01-30T06:00:00Z").output
    assert "no worker has fired it" in invoke("jobs", "explain", "cron/clean_up/2000-02-02T06:00:00Z").output
    assert "not due yet" in invoke("jobs", "explain", "cron/clean_up/9000-02-02T06:00:00Z").output
    made = invoke("jobs", "explain", "cron/clean_up/2000-01-31T06:00:00Z").output
    assert "Schedule 'clean_up' made it for its tick 2000-01-31T06:00:00Z." in made
    assert document("jobs", "explain", "cron/clean_up/2000-02-01T06:00:00Z")["situation"] == "its schedule made no job"


def test_explain_of_ticks_that_were_missed_paused_or_forgotten(store: Store) -> None:
    wall = SIX + 30 * DAY
    due = tuple(SIX + n * DAY for n in range(2, 5))
    store.run(c.FireTicks([TickFire("clean_up", 1, due[0], due, due[-1] + DAY)], wall))
    invoke("cron", "pause", "clean_up", *WHY)

    def why(day: int, now: int = wall) -> str:
        at = datetime(2000, 1, 31, 6, tzinfo=UTC).timestamp() + day * 86_400
        job_id = f"cron/clean_up/{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
        found = explain_tick(job_id, store.run(c.GetSchedule("clean_up")), now)
        assert found is not None
        return found.now[1]

    assert "missed" in why(2)
    assert "paused, by ada" in why(6)
    store.run(c.ResumeSchedule("clean_up", SIX + 5 * DAY, (SIX + 5 * DAY,), SIX + 6 * DAY, "ada", "why"))
    assert "while the schedule was paused" in why(5)
    assert "forgotten" in why(0)
    assert explain_tick("job", None, wall) is None


def test_a_tick_that_one_job_waiting_kept_from_making_another(store: Store) -> None:
    spec = ScheduleSpec("one", "0 6 * * *", "UTC", JobSpec("", "q", "k"), Overlap.ONE)
    store.run(c.SetSchedule(spec, SIX, SIX - 1, "ada", "why"))
    for tick in (SIX, SIX + DAY):
        store.run(c.FireTicks([TickFire("one", 1, tick, (tick,), tick + DAY)], tick))
    assert "waited (overlap one)" in invoke("jobs", "explain", "cron/one/2000-02-01T06:00:00Z").output


def test_stats_name_the_schedules_that_are_late_but_for_paused_ones(store: Store) -> None:
    found = document("stats")["late_schedules"]
    assert list(found) == ["clean_up"]
    assert found["clean_up"]["late_us"] > 365 * DAY
    assert "late schedules: clean_up (" in invoke("stats").output
    invoke("cron", "pause", "clean_up", *WHY)
    assert document("stats")["late_schedules"] == {}
    assert "late" not in invoke("stats").output
