"""What differs between systems: how a file is synced, and what a boot is known by."""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from leasemill.errors import Refused
from leasemill.kernel.model import JobSpec
from leasemill.store.factory import open_store
from leasemill.store.file import clock, disk
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule

F_FULLFSYNC = 51
SESSION = "0A1B2C3D-0000-4000-8000-000000000000"


class MacLibrary:
    """The C library of macOS, as far as it is asked."""

    def sysctlbyname(self, name: bytes, value: Any, size: Any, _new: None, _new_size: Any) -> int:
        if name != b"kern.bootsessionuuid":
            return -1
        content = SESSION.encode() + b"\0"
        size._obj.value = len(content)
        if value is not None:
            value.raw = content
        return 0


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clock, "BOOT_ID", tmp_path / "there is no such file")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name, use_errno: MacLibrary())


@rule("W1")
def test_where_there_is_a_full_sync_every_sync_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[int] = []
    monkeypatch.setattr(disk, "FULL_SYNC", F_FULLFSYNC)
    monkeypatch.setattr(fcntl, "fcntl", lambda _fd, command: full.append(command))
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "fsync")
    with FileStore(tmp_path / "jobs") as store:
        opened = len(full)
        store.enqueue([JobSpec("first", "q", "k")])
    assert opened >= 4  # the folder's parent, a segment, the manifest, their names
    assert full[opened:]
    assert set(full) == {F_FULLFSYNC}


@rule("W1")
def test_here_appends_are_synced_with_fdatasync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with FileStore(tmp_path / "jobs") as store:
        before = len(synced)
        store.enqueue([JobSpec("first", "q", "k")])
    assert len(synced) > before


@rule("W10")
@pytest.mark.usefixtures("mac")
def test_on_macos_a_boot_is_known_by_its_session_which_sleep_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = clock.RealMachine()
    assert machine.boot_id() == SESSION
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert machine.boot_id() == SESSION


@pytest.mark.usefixtures("mac")
def test_a_value_the_system_does_not_have_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"kern\.nothing"):
        clock.system_value("kern.nothing")


@rule("W13")
def test_a_system_without_a_boot_identity_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "BOOT_ID", tmp_path / "there is no such file")
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(Refused, match=r"needs Linux or macOS.*freebsd14"):
        open_store(f"file:{tmp_path}/jobs")


@rule("W13")
def test_a_folder_on_windows_is_refused_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Refused, match="needs Linux or macOS"):
        open_store("file:jobs")
