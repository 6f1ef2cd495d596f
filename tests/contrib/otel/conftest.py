"""An app in memory that is instrumented, and what it records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill import App
from leasemill.testing.clock import ManualClock
from tests.contrib.otel.support import Recorded
from tests.worker.support import FaultyStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[FaultyStore]:
    with FaultyStore(clock) as store:
        yield store


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def app(store: FaultyStore, recorded: Recorded) -> App:
    app = App(store=store)
    recorded.instrument(app)
    return app
