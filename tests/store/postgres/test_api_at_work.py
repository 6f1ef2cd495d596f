"""Jobs and handles while a worker runs, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from leasemill import App, StreamCount, open_store
from leasemill.kernel.model import SECOND, Policy
from leasemill.store.base import Store
from tests.api.work_suite import WorkSuite


class TestPostgres(WorkSuite):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(postgres_url) as store:
            yield store


def test_what_is_chosen_for_one_job_joins_the_users_transaction(postgres_url: str, server_url: str) -> None:
    with App(postgres_url) as app, psycopg.connect(server_url) as connection:

        @app.job(retry=5)
        def book(cents: int) -> int:
            return cents

        chosen = book.options(queue="slow", retry=1, lease=20, timeout=9, job_id="own")
        own = chosen.using(connection).enqueue(1)
        named = app.named("ship", queue="mail").using(connection).options(timeout=7).enqueue(to="ann")
        stream = book.using(connection).enqueue_stream(book.call(cents) for cents in range(1_200))
        assert stream == StreamCount(1_200)
        assert app.store.job("own") is None, "not committed yet"
        connection.commit()
        spec = own.record().spec
        assert (spec.queue, spec.policy) == ("slow", Policy(1, 20 * SECOND, 9 * SECOND))
        assert named.record().spec.policy == Policy(timeout_us=7 * SECOND)
        assert {view.name: sum(view.counts.values()) for view in app.store.queues()} == {
            "default": 1_200, "mail": 1, "slow": 1
        }  # fmt: skip
