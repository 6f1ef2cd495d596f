"""Django's connections in a worker: as many as there are threads, however many jobs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from django.db import connections
from django.test import override_settings

from leasemill import Context
from leasemill.contrib.django import app
from leasemill.testing.drain import drain, in_memory
from tests.contrib.django import project
from tests.contrib.django.shop.jobs import SESSIONS, breaks, look, look_async

JOBS = 2_000
THREADS = 4


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    SESSIONS.clear()
    with in_memory(app):
        yield
    connections.close_all()
    with warnings.catch_warnings():  # what threads that have ended kept open is closed when it is collected
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.filterwarnings("ignore:.*deleted while still open:ResourceWarning")  # of threads that have ended
def test_a_thread_keeps_its_connection_for_thousands_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(project.DATABASE, "CONN_MAX_AGE", None)
    app.enqueue_many(look.call() for _ in range(JOBS))
    drain(app, concurrency=THREADS)
    assert len(SESSIONS) == JOBS
    assert 1 <= len(set(SESSIONS)) <= THREADS


def test_without_a_maximum_age_each_job_closes_what_it_opened() -> None:
    app.enqueue_many(look.call() for _ in range(50))
    drain(app, concurrency=THREADS)
    assert len(SESSIONS) == 50
    assert len(set(SESSIONS)) > THREADS
    with connections["default"].cursor() as cursor:
        cursor.execute("select count(*) from pg_stat_activity where pid = any(%s)", [SESSIONS])
        assert cursor.fetchone() == (0,)


@pytest.mark.filterwarnings("ignore:.*deleted while still open:ResourceWarning")  # of threads that have ended
def test_async_handlers_share_the_connection_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(project.DATABASE, "CONN_MAX_AGE", None)
    app.enqueue_many(look_async.call() for _ in range(200))
    drain(app, concurrency=THREADS)
    assert len(SESSIONS) == 200
    assert len(set(SESSIONS)) == 1


def test_a_connection_that_broke_is_replaced_for_the_next_run() -> None:
    breaks.enqueue()
    drain(app)
    drain(app)
    assert len(SESSIONS) == 1


@override_settings(DEBUG=True)
def test_the_query_log_of_debug_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(project.DATABASE, "CONN_MAX_AGE", None)
    seen: list[int] = []

    def count(_context: Context) -> AbstractContextManager[None]:
        seen.append(len(connections["default"].queries_log))
        return nullcontext()

    app.hooks.around.append(count)
    try:
        app.enqueue_many(look.call() for _ in range(50))
        drain(app, concurrency=1)
    finally:
        app.hooks.around.remove(count)
    assert len(seen) == 50
    assert max(seen) == 0
