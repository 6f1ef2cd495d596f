"""Waiting on postgresql://: rows hold who waits for what, and whoever ends a job notifies them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import psycopg
import pytest

from leasemill.api.handle import JobHandle
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.waking import waiters
from leasemill.testing.rules import rule
from tests.lab.processes import wait_until
from tests.store.postgres.conftest import with_option
from tests.store.waiting import LONG_S, WaitingSuite, ack_next, in_process


class TestPostgres(WaitingSuite):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.fixture(autouse=True)
    def rows(self, admin: psycopg.Connection[Any], schema: str) -> None:
        self._admin, self._schema = admin, schema

    @pytest.fixture
    def without_looking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiters, "LOOK_EVERY_S", 3_600.0)

    def is_ready_to_be_woken(self, store: Store) -> bool:
        return self._count() > 0

    def is_left_behind(self, store: Store) -> bool:
        return bool(cast(PostgresStore, store)._listener.ends) or self._count() > 0

    def _count(self) -> int:
        row = self._admin.execute(f"select count(*) from {self._schema}.waiters".encode()).fetchone()
        assert row is not None
        return int(row[0])

    @rule("O9")
    def test_without_listening_it_looks_once_a_second(self, url: str, handle: JobHandle[Any]) -> None:
        with open_store(with_option(url, "listen=false")) as store:
            other = in_process("spawn", ack_next, url, b"3")
            assert JobHandle[Any](store, "job", None).result(timeout=LONG_S) == 3
            other.join(LONG_S)
            assert self._count() == 0

    @rule("O9")
    def test_rows_of_processes_that_died_are_forgotten(self, url: str, handle: JobHandle[Any]) -> None:
        self._admin.execute(
            f"insert into {self._schema}.waiters values (-1, 'gone', now() - interval '1 second')".encode()
        )
        with ThreadPoolExecutor(1) as executor:
            waiter = executor.submit(handle.result, LONG_S)
            wait_until(lambda: self._channels() - {"gone"} == self._channels() != set(), "the row to go", LONG_S)
            ack_next(url, b"1")
            assert waiter.result(LONG_S) == 1

    @rule("O9")
    def test_who_waits_is_registered_again_when_its_connection_was_lost(self, url: str, handle: JobHandle[Any]) -> None:
        with ThreadPoolExecutor(1) as executor:
            waiter = executor.submit(handle.result, LONG_S)
            wait_until(lambda: self._count() > 0, "the waiter", LONG_S)
            self._admin.execute(f"delete from {self._schema}.waiters".encode())
            self._admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where pid <> pg_backend_pid() and application_name = 'leasemill'"
            )
            wait_until(lambda: self._count() > 0, "the waiter again", LONG_S)
            ack_next(url, b"1")
            assert waiter.result(LONG_S) == 1

    def _channels(self) -> set[str]:
        return {channel for (channel,) in self._admin.execute(f"select channel from {self._schema}.waiters".encode())}
