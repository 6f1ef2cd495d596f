"""What the worker's tests start from: a store with faults, and an app on it."""

from __future__ import annotations

import pytest

from leasemill import App, JobType
from leasemill.testing.clock import ManualClock
from tests.worker.support import FaultyStore


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock in a test that asks for it; without it time is real."""
    return ManualClock()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> FaultyStore:
    return FaultyStore(request.getfixturevalue("clock") if "clock" in request.fixturenames else None)


@pytest.fixture
def app(store: FaultyStore) -> App:
    return App(store=store)


@pytest.fixture
def noop(app: App) -> JobType[[], None]:
    @app.job
    async def noop() -> None: ...

    return noop
