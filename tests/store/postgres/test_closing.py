"""A store that is closed while another thread is in a call that starts one of the store's own threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.store.postgres.store import PostgresStore
from tests.lab.starting import close_while_starting


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("leasemill listen", lambda store: store.watch(["mail"])),
        ("leasemill listen", lambda store: store.watch_end("job")),
        ("leasemill-retention", lambda store: store.run(c.Expire(10))),
    ],
)
def test_a_store_is_closed_while_a_thread_of_its_own_is_being_started(
    name: str, call: Callable[[PostgresStore], Any], postgres_url: str
) -> None:
    store = PostgresStore(postgres_url)
    store._retention_loop._due_at_s = 0.0
    close_while_starting(name, lambda: call(store), store.close)


def test_a_store_that_is_closed_starts_no_thread_any_more(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store._retention_loop._due_at_s = 0.0
    store.close()
    store._retention_loop.begin()
    store.watch(["mail"])
    assert store._retention_loop._thread is None
    assert store._listener._thread is None
