"""How often a worker lets Python look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leasemill import App
from leasemill.worker.gc_tuning import WORKERS
from tests.worker.support import drained


@pytest.fixture(autouse=True)
def _thresholds_as_they_were() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def thresholds_within(app: App) -> tuple[int, int, int]:
    found: list[tuple[int, int, int]] = []

    @app.job
    async def looks() -> None:
        found.append(gc.get_threshold())

    looks.enqueue()
    await drained(app)
    return found[0]


async def test_python_looks_less_often_while_a_worker_runs(app: App) -> None:
    gc.set_threshold(700, 10, 10)
    assert await thresholds_within(app) == (WORKERS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (500, 5, 5), (50_000, 20, 20)])
async def test_what_the_program_has_chosen_stays(app: App, chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    assert await thresholds_within(app) == chosen
    assert gc.get_threshold() == chosen
