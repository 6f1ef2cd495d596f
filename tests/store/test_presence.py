"""Workers' records: replaced, listed, removed, whatever keeps them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasemill.store import presence as presence_module
from leasemill.store.presence import FolderPresence, MemoryPresence, Presence, instance_of
from leasemill.testing.rules import rule


class StillTime:
    """Time since boot that passes when it is set."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def seconds(self) -> float:
        return self.now_s

    def microseconds(self) -> int:
        return int(self.now_s * 1_000_000)


@pytest.fixture
def time() -> StillTime:
    return StillTime()


@pytest.fixture(params=["memory", "folder"])
def presence(request: pytest.FixtureRequest, tmp_path: Path, time: StillTime) -> Presence:
    return MemoryPresence(time.seconds) if request.param == "memory" else FolderPresence(tmp_path, time.microseconds)


def test_nobody_is_there_at_first(presence: Presence) -> None:
    assert presence.records() == []


def test_a_record_is_replaced_by_the_next(presence: Presence) -> None:
    presence.publish("host-1", b"one")
    presence.publish("host-1", b"two")
    assert presence.records() == [("host-1", b"two", 0.0)]


def test_records_come_by_worker_id(presence: Presence) -> None:
    presence.publish("b", b"2")
    presence.publish("a", b"1")
    assert presence.records() == [("a", b"1", 0.0), ("b", b"2", 0.0)]


def test_removing_returns_whether_there_was_one(presence: Presence) -> None:
    presence.publish("a", b"1")
    assert presence.remove("a")
    assert not presence.remove("a")
    assert presence.records() == []


def test_the_record_of_another_instance_is_not_removed(presence: Presence) -> None:
    record = b'{\n"instance":"second"\n}'
    presence.publish("a", record)
    assert not presence.remove("a", "first")
    assert presence.records() == [("a", record, 0.0)]
    assert presence.remove("a", "second")
    assert not presence.remove("a", "second")
    assert presence.records() == []


def test_where_files_cannot_be_linked_the_record_of_another_instance_stays_too(
    tmp_path: Path, time: StillTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    presence = FolderPresence(tmp_path, time.microseconds)
    presence.publish("a", b'{"instance":"second"}')
    assert not presence.remove("a", "first")
    assert presence.records() == [("a", b'{"instance":"second"}', 0.0)]
    assert presence.remove("a", "second")
    assert not list((tmp_path / "workers").iterdir())


@pytest.mark.parametrize("worker_id", ["a", "💼" * 200])
def test_a_record_that_is_published_while_another_is_looked_at_stays(
    tmp_path: Path, time: StillTime, monkeypatch: pytest.MonkeyPatch, worker_id: str
) -> None:
    presence = FolderPresence(tmp_path, time.microseconds)
    presence.publish(worker_id, b'{"instance":"first"}')

    def then_publish(record: bytes) -> str:
        presence._write(worker_id, b'{"instance":"second"}')
        return instance_of(record)

    with monkeypatch.context() as patched:
        patched.setattr(presence_module, "instance_of", then_publish)
        assert presence.remove(worker_id, "first")
        assert not presence.remove(worker_id, "first")
    assert presence.records() == [(worker_id, b'{"instance":"second"}', 0.0)]
    assert len(list((tmp_path / "workers").iterdir())) == 1, "nothing is left beside it"


@pytest.mark.parametrize(
    "worker_id", ["../../etc/passwd", "a/b", ".", "..", "ä ö", "x" * 60, "a.worker", "=", "x" * 200, "💼" * 200]
)
def test_any_worker_id_is_only_a_name(presence: Presence, worker_id: str) -> None:
    presence.publish(worker_id, b"1")
    assert presence.records() == [(worker_id, b"1", 0.0)]
    assert presence.remove(worker_id)


@rule("L8")
def test_a_record_ages_by_the_clock_of_the_store(presence: Presence, time: StillTime) -> None:
    presence.publish("a", b"1")
    time.now_s += 5
    presence.publish("b", b"2")
    time.now_s += 2
    assert presence.records() == [("a", b"1", 7.0), ("b", b"2", 2.0)]


def test_a_record_of_an_earlier_boot_is_at_least_as_old_as_this_one(tmp_path: Path, time: StillTime) -> None:
    presence = FolderPresence(tmp_path, time.microseconds)
    presence.publish("a", b"1")
    time.now_s = 60.0
    assert presence.records() == [("a", b"1", 60.0)]


def test_a_file_of_another_version_is_not_read(tmp_path: Path, time: StillTime) -> None:
    presence = FolderPresence(tmp_path, time.microseconds)
    presence.publish("a", b"1")
    (tmp_path / "workers" / "b.worker").write_bytes(b'{"worker":"b"}')
    assert presence.records() == [("a", b"1", 0.0)]


def test_worker_ids_that_begin_alike_are_distinguished_however_long(presence: Presence) -> None:
    ids = sorted(f"{'ö' * 190}-{number}" for number in range(3))
    for worker_id in ids:
        presence.publish(worker_id, worker_id.encode())
    assert [record[:2] for record in presence.records()] == [(worker_id, worker_id.encode()) for worker_id in ids]
    assert presence.remove(ids[1])
    assert [record[0] for record in presence.records()] == [ids[0], ids[2]]


def test_a_record_being_written_is_not_seen(tmp_path: Path, time: StillTime) -> None:
    presence = FolderPresence(tmp_path, time.microseconds)
    presence.publish("a", b"1")
    (tmp_path / "workers" / "a.worker-7").write_bytes(b"hal")
    assert presence.records() == [("a", b"1", 0.0)]
