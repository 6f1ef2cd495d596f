"""Workers' records: replaced, listed, removed, whatever keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.store.presence import FolderPresence, MemoryPresence, Presence


@pytest.fixture(params=["memory", "folder"])
def presence(request: pytest.FixtureRequest, tmp_path: Path) -> Presence:
    return MemoryPresence() if request.param == "memory" else FolderPresence(tmp_path)


def test_nobody_is_there_at_first(presence: Presence) -> None:
    assert presence.records() == []


def test_a_record_is_replaced_by_the_next(presence: Presence) -> None:
    presence.publish("host-1", b"one")
    presence.publish("host-1", b"two")
    assert presence.records() == [("host-1", b"two")]


def test_records_come_by_worker_id(presence: Presence) -> None:
    presence.publish("b", b"2")
    presence.publish("a", b"1")
    assert presence.records() == [("a", b"1"), ("b", b"2")]


def test_removing_tells_whether_there_was_one(presence: Presence) -> None:
    presence.publish("a", b"1")
    assert presence.remove("a")
    assert not presence.remove("a")
    assert presence.records() == []


@pytest.mark.parametrize("worker_id", ["../../etc/passwd", "a/b", ".", "..", "ä ö", "x" * 60, "a.worker"])
def test_any_worker_id_is_only_a_name(presence: Presence, worker_id: str) -> None:
    presence.publish(worker_id, b"1")
    assert presence.records() == [(worker_id, b"1")]
    assert presence.remove(worker_id)


def test_a_record_being_written_is_not_seen(tmp_path: Path) -> None:
    presence = FolderPresence(tmp_path)
    presence.publish("a", b"1")
    (tmp_path / "workers" / "a.worker-7").write_bytes(b"hal")
    assert presence.records() == [("a", b"1")]
