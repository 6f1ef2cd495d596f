"""Following what other processes write: without the lock, and beside a busy one for a limited time."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from tests.crash.lab import digest_of, log_of

SMALL = FileOptions(segment_bytes=4096, does_maintenance=False)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def test_a_store_that_keeps_up_has_read_what_others_wrote_and_takes_no_lock(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as reader, FileStore(folder, options=SMALL) as writer:
        reader.totals()
        writer.enqueue([job("new")])
        log = log_of(writer)
        with log.locked():
            reader.keep_up()
            assert log_of(reader).position == log.position
            assert reader.totals().counts[JobState.READY] == 1


def test_a_store_that_keeps_up_for_a_limited_time_has_the_latest_pulse_and_reads_all_when_nobody_writes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.store.file.batch.PULSE_EVERY_S", 0.0)
    with FileStore(folder, options=SMALL) as reader, FileStore(folder, options=SMALL) as writer:
        reader.totals()
        for number in range(20):
            writer.enqueue([job(f"new-{number}")])
        writer.claim("worker", ["q"], 3)
        before = log_of(reader).position
        assert reader.keep_up(0.0) == writer.pulse() == (20, 3, 3)
        assert before < log_of(reader).position < log_of(writer).position
        assert reader.keep_up(60.0) is None
        assert digest_of(reader) == digest_of(writer)
        writer.claim("worker", ["q"], 1)
        writer.claim("worker", ["q"], 1)
        assert reader.keep_up(0.0) == (20, 5, 5)
        monkeypatch.setattr("leasemill.store.file.batch.AT_REST_S", 0.0)
        assert reader.keep_up(0.0) is None
        assert log_of(reader).position == log_of(writer).position


def test_without_a_pulse_of_what_was_appended_last_all_of_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a version that publishes none, or by a process that only enqueues."""
    with FileStore(folder, options=SMALL) as reader, FileStore(folder, options=SMALL) as writer:
        writer.enqueue([job("first")])
        reader.totals()
        monkeypatch.setattr("leasemill.store.file.batch.PULSE_EVERY_S", 3_600.0)
        for number in range(20):
            writer.enqueue([job(f"new-{number}")])
        assert reader.keep_up(0.0) is None
        assert log_of(reader).position == log_of(writer).position
