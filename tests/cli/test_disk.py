"""`stats` and `health` on a full disk."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.store.file.disk import RealDisk
from leasemill.store.file.space import RESERVE
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule


def asked(folder: Path, command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CliRunner().invoke(main, [command, "--json", "--url", f"file:{folder}"]).output)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with FileStore(tmp_path / "jobs") as store:
        store.totals()
    return tmp_path / "jobs"


@rule("W7")
@pytest.mark.parametrize("command", ["stats", "health"])
def test_the_disk_is_reported_with_room_and_without(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = asked(folder, command)["disk"]
    assert (disk["is_full"], disk["needed_bytes"], disk["is_reserve_whole"]) == (False, 0, True)
    assert disk["reserve_bytes"] > 16 * 1024 * 1024
    assert disk["free_bytes"] > 0

    def refuse(_disk: RealDisk, _name: str, _size: int, _head: bytes = b"") -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with FileStore(folder) as store:
        log = store._replica.opened_log()
        (folder / RESERVE).unlink()
        monkeypatch.setattr(RealDisk, "allocate", refuse)
        monkeypatch.setattr(RealDisk, "create", refuse)
        monkeypatch.setattr(RealDisk, "free_bytes", 4096)
        log.space.prepare_spare()
        disk = asked(folder, command)["disk"]
        assert (disk["is_full"], disk["free_bytes"], disk["is_reserve_whole"]) == (True, 4096, False)
        assert disk["needed_bytes"] > 32 * 1024 * 1024
        shown = CliRunner().invoke(main, [command, "--url", f"file:{folder}"]).output
        assert "the disk is full: new jobs are refused, running jobs can finish; free 35 MB or more, or purge" in shown
