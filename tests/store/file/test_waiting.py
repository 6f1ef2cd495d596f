"""Waiting on `file:`: a write to the folder wakes; where the system does not report writes, a look once a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from leasemill.api.handle import JobHandle
from leasemill.store.base import Store
from leasemill.store.file import waiters, watch
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule
from tests.store.waiting import LONG_S, WaitingSuite, ack_next, in_process


class TestFile(WaitingSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file:{tmp_path / 'jobs'}"

    @pytest.fixture
    def without_looking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiters, "LOOK_EVERY_S", 3_600.0)

    def is_ready_to_be_woken(self, store: Store) -> bool:
        return bool(cast(FileStore, store)._waiters.ends)

    def is_left_behind(self, store: Store) -> bool:
        found = cast(FileStore, store)._waiters
        return bool(found.ends) or found._thread is not None or found._log_writes is not None

    @pytest.fixture
    def without_reports_of_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "_inotify", lambda _path, _events: None)

    @rule("O9")
    @pytest.mark.usefixtures("without_reports_of_writes")
    def test_without_reports_of_writes_it_looks_once_a_second(self, url: str, handle: JobHandle[Any]) -> None:
        other = in_process("spawn", ack_next, url, b"3")
        assert handle.result(timeout=LONG_S) == 3
        other.join(LONG_S)

    @rule("O10")
    @pytest.mark.usefixtures("without_reports_of_writes")
    def test_without_reports_of_writes_a_cancellation_is_looked_for_once_a_second(
        self, url: str, store: Store, handle: JobHandle[Any]
    ) -> None:
        self.test_a_cancellation_by_another_store_is_reported(url, store, handle)


def test_a_store_that_is_closed_keeps_no_thread_for_those_who_might_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "LINGER_S", 3_600.0)
    with FileStore(tmp_path / "jobs") as store:
        store.watch_end("job").close()
        thread = store._waiters._thread
        assert thread is not None
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert store._waiters._wake is None, "nor descriptors"
