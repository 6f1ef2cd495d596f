"""Folders of format 1 can be read, and are still written byte by byte as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from leasemill.kernel.events import AnyEvent
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import JobSpec
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.faults import SimulatedMachine
from leasemill.testing.rules import rule
from tests.crash.lab import state_of
from tests.golden.script import EXPECTED, FOLDER, dumped, written

FILES = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}


@pytest.fixture
def expected() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXPECTED.read_text())
    return document


def opened(folder: Path) -> FileStore:
    """In the boot the files were written in: in another one its leases would be ended first."""
    options = FileOptions(segment_bytes=4096, does_maintenance=False)
    return FileStore(folder, options=options, clock=ManualClock(), machine=SimulatedMachine())


@rule("W8", "W13")
def test_a_folder_of_format_1_is_read_as_it_was_written(tmp_path: Path, expected: dict[str, Any]) -> None:
    copy = tmp_path / "jobs"
    shutil.copytree(FOLDER, copy)
    with opened(copy) as store:
        state = state_of(store)
        assert violations(state) == []
        assert dumped(state, FILES) == expected
        store.enqueue([JobSpec("one more", "mail", "send")])
    with opened(copy) as store:
        assert store.job("one more") is not None


@rule("W13")
def test_the_same_run_still_writes_the_same_bytes(expected: dict[str, Any]) -> None:
    machine, state = written()
    assert {name: content == FILES.get(name) for name, content in machine.files().items()} == dict.fromkeys(FILES, True)
    assert dumped(state, machine.files()) == expected


def test_every_event_is_among_those_of_the_golden_files(expected: dict[str, Any]) -> None:
    assert {event[0] for event in expected["events"]} == {kind.__name__ for kind in get_args(AnyEvent)}


def test_the_golden_files_have_a_snapshot_a_sealed_segment_and_one_in_use() -> None:
    listed = json.loads(FILES["manifest"].partition(b"\n")[2])
    assert listed["format"] == 1
    assert listed["snapshot"]["name"] in FILES
    assert len(listed["segments"]) == 2
    assert sum(map(len, FILES.values())) < 40_000
