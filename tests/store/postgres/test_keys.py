"""Keys on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasemill.errors import Refused
from leasemill.store.access_keys import AccessKeys
from leasemill.store.postgres import keys as postgres_keys
from leasemill.store.postgres.store import PostgresStore
from tests.store.key_suite import NOW, KeySuite, made


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as store:
        yield store


class TestPostgres(KeySuite):
    @pytest.fixture
    def keys(self, store: PostgresStore) -> AccessKeys:
        return store.keys

    def counting(self) -> list[object]:
        return [postgres_keys]


def test_the_last_use_leaves_the_version_as_it_is(store: PostgresStore) -> None:
    key = made()
    store.keys.add(key)
    version = store.keys.version()
    store.keys.use({key.id: NOW + 1})
    assert store.keys.version() == version


def test_one_name_is_given_once_however_many_ask_at_once(store: PostgresStore) -> None:
    def add(_: int) -> bool:
        try:
            store.keys.add(made("same"))
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as executor:
        assert sum(executor.map(add, range(16))) == 1
    assert len(store.keys.all()) == 1


def test_servers_that_record_uses_at_once_do_not_deadlock(store: PostgresStore) -> None:
    added = [made(f"key-{number}") for number in range(20)]
    for key in added:
        store.keys.add(key)

    def use(number: int) -> None:
        order = added if number % 2 else list(reversed(added))
        store.keys.use({key.id: NOW + number for key in order})

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(use, range(40)))
    assert {key.last_used_at for key in store.keys.all()} == {NOW + 39}
