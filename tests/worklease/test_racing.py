"""Orchestrators that should not be there, racing on one folder. On PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from pathlib import Path

from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule
from tests.worklease.racing import race


@rule("N12", "N1")
def test_in_a_folder_every_offset_is_acquired_and_succeeded_once_whoever_races(tmp_path: Path) -> None:
    race(lambda: FileStore(tmp_path / "offsets"), callers=4)
