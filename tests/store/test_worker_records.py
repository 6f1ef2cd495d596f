"""What workers published about a run: only what is recent, and of that attempt."""

from __future__ import annotations

import pytest

from leasemill.store.presence import MemoryPresence
from leasemill.store.worker_records import Reported, RunningJob, WorkerRecord, encode_record, reported_run


class Hours:
    now_s = 0.0


@pytest.fixture
def hours() -> Hours:
    return Hours()


@pytest.fixture
def presence(hours: Hours) -> MemoryPresence:
    return MemoryPresence(lambda: hours.now_s)


def publish(presence: MemoryPresence, worker: str, *running: RunningJob, stuck: tuple[RunningJob, ...] = ()) -> None:
    record = WorkerRecord(worker, "host", 1, 0, 0, 2.0, {"q": 1}, 4, False, list(running), {}, stuck=list(stuck))
    presence.publish(worker, encode_record(record))


def test_the_run_of_this_attempt_is_found(presence: MemoryPresence, hours: Hours) -> None:
    first, second = (RunningJob("job", "kind", attempt, 1.0, done=attempt) for attempt in (1, 2))
    publish(presence, "old", first)
    publish(presence, "new", RunningJob("other", "kind", 2, 1.0), second)
    hours.now_s = 1.5
    assert reported_run(presence, "job", 2) == Reported("new", second, 1.5)
    assert reported_run(presence, "job", 1) == Reported("old", first, 1.5)
    assert reported_run(presence, "job", 3) is None
    assert reported_run(presence, "absent", 1) is None


def test_a_worker_without_a_heartbeat_reports_nothing(presence: MemoryPresence, hours: Hours) -> None:
    publish(presence, "dead", RunningJob("job", "kind", 1, 1.0, done=1))
    hours.now_s = 9.0
    assert reported_run(presence, "job", 1) is not None
    hours.now_s = 9.1
    assert reported_run(presence, "job", 1) is None


def test_a_handler_that_is_stuck_is_not_running(presence: MemoryPresence) -> None:
    publish(presence, "slow", stuck=(RunningJob("job", "kind", 1, 1.0, done=1),))
    assert reported_run(presence, "job", 1) is None


def test_a_record_of_another_version_is_skipped(presence: MemoryPresence) -> None:
    presence.publish("strange", b'{"worker": 1}')
    job = RunningJob("job", "kind", 1, 1.0, done=1)
    publish(presence, "usual", job)
    assert reported_run(presence, "job", 1) == Reported("usual", job, 0.0)
