"""Handlers in processes of their own, on PostgreSQL: each process has a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.kernel.model import JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.worker.processes import jobs, suite


@pytest.fixture(autouse=True)
def store(postgres_url: str, tmp_path: Path) -> Iterator[Store]:
    with jobs.trail(tmp_path), open_store(postgres_url) as store, jobs.app.bound_to(store):
        yield store


async def test_handlers_that_do_not_end_well_take_their_own_process_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await suite.handlers_that_do_not_end_well(monkeypatch)


async def test_a_handler_commits_enqueues_and_waits_from_its_process(
    bank: psycopg.Connection[Any],
) -> None:
    pays, joins = jobs.pays.enqueue("ann", 5), jobs.pays_in_its_own_session.enqueue("ann", 7, bank.info.dsn)
    await suite.commits_from_a_process()
    assert (pays.status(), joins.status()) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert bank.execute("select cents from balance where account = 'ann'").fetchone() == (12,)
