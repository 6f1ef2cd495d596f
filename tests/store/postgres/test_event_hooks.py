"""Hooks on what becomes of jobs, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.worker import hook_suite


@pytest.fixture(autouse=True)
def store(postgres_url: str) -> Iterator[Store]:
    with open_store(postgres_url) as store, hook_suite.app.bound_to(store):
        yield store


async def test_hooks_see_every_end_with_every_executor() -> None:
    await hook_suite.hooks_see_every_end_with_every_executor()


async def test_a_process_that_dies_is_a_failure_without_an_exception() -> None:
    await hook_suite.a_process_that_dies_is_a_failure_without_an_exception()


async def test_a_cancelled_run_is_lost_with_its_reason() -> None:
    await hook_suite.a_cancelled_run_is_lost_with_its_reason()
