"""Folders of every format can be read, and those of the latest are still written byte by byte as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, JobCancelled, JobEnqueued
from leasemill.kernel.image import image, jobs_in_order, restore
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply
from leasemill.kernel.model import JobSpec, JobState
from leasemill.kernel.state import State
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import state_of
from tests.golden.script import FOLDER, OLDER, WITHOUT_CLOCK, WITHOUT_DEATHS, WITHOUT_ORDERS, dumped, expected, written
from tests.lab.faults import SimulatedMachine

WRITTEN = (WITHOUT_DEATHS, WITHOUT_ORDERS, WITHOUT_CLOCK, FOLDER)
of_each = pytest.mark.parametrize("folder", [*OLDER, *WRITTEN], ids=lambda folder: folder.name)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def document_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(expected(folder).read_text())
    return document


def as_before(found: Any, before: Any) -> Any:
    """What was found, without the fields that were added since: they come last, and have what they default to."""
    if isinstance(found, dict) and isinstance(before, dict):
        return {name: as_before(value, before.get(name)) for name, value in found.items()}
    if isinstance(found, list) and isinstance(before, list):
        added = found[len(before) :]
        assert all(value in (None, [], {}, 0, 1, False) for value in added), added
        return [as_before(one, other) for one, other in zip(found, before, strict=False)]
    return found


def opened(folder: Path) -> FileStore:
    """In the boot the files were written in: in another one its leases would be ended first."""
    options = FileOptions(segment_bytes=4096, does_maintenance=False)
    return FileStore(folder, options=options, clock=ManualClock(), machine=SimulatedMachine())


@of_each
@rule("W8", "W13")
def test_a_folder_is_read_as_it_was_written(tmp_path: Path, folder: Path) -> None:
    copy = tmp_path / "jobs"
    shutil.copytree(folder, copy)
    with opened(copy) as store:
        state = state_of(store)
        assert violations(state) == []
        found, document = dumped(state, files_of(folder)), document_of(folder)
        if folder in WRITTEN:
            assert found == document
        else:
            del found["digest"], document["digest"]
            assert as_before(found, document) == document
        store.enqueue([JobSpec("one more", "mail", "send")])
    with opened(copy) as store:
        assert store.job("one more") is not None


@of_each
@rule("W9", "I7")
def test_a_process_that_has_read_nothing_enqueues_nothing_where_acquire_is_used(tmp_path: Path, folder: Path) -> None:
    copy = tmp_path / "jobs"
    shutil.copytree(folder, copy)
    assert (b"acquire_queues" in files_of(copy)["manifest"]) == (folder != OLDER[0])
    with opened(copy) as store, pytest.raises(QueueRefused):
        store.run(c.Enqueue([JobSpec("stray", "offsets", "send")], are_new=True))
    assert b"acquire_queues" in files_of(copy)["manifest"]


@rule("W13", "O1")
def test_a_snapshot_that_calls_a_cancelled_job_dead_is_read_as_cancelled() -> None:
    state = State()
    apply(state, JobEnqueued(JobSpec("job", "mail", "send"), 5))
    apply(state, JobCancelled("job", 6, "ada", "why"))
    (job,) = jobs_in_order(state)
    written_before = replace(job, state=JobState.DEAD, cancellation=None)
    restored = restore(image(state), [written_before])
    assert violations(restored) == []
    assert restored.jobs["job"].state is JobState.CANCELLED


@rule("W13")
@pytest.mark.parametrize("folder", WRITTEN, ids=lambda folder: folder.name)
def test_the_same_run_still_writes_the_same_bytes(folder: Path) -> None:
    machine, state = written(folder)
    files = files_of(folder)
    assert {name: content == files.get(name) for name, content in machine.files().items()} == dict.fromkeys(files, True)
    assert dumped(state, machine.files()) == document_of(folder)


def test_every_event_is_among_those_of_the_golden_files() -> None:
    events = document_of(FOLDER)["events"]
    assert {event[0] for event in events} == {kind.__name__ for kind in get_args(AnyEvent)}


@of_each
def test_the_golden_files_have_a_snapshot_a_sealed_segment_and_one_in_use(folder: Path) -> None:
    files = files_of(folder)
    listed = json.loads(files["manifest"].partition(b"\n")[2])
    assert listed["format"] == {FOLDER: 6, WITHOUT_CLOCK: 4, WITHOUT_ORDERS: 3, WITHOUT_DEATHS: 2}.get(folder, 1)
    assert listed["snapshot"]["name"] in files
    assert len(listed["segments"]) >= 2
    assert sum(map(len, files.values())) < 60_000
