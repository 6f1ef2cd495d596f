from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from leasemill import App, JobType
from tests.store.postgres.adapters.subjects import SUBJECTS, Subject
from tests.store.postgres.committing import Connection


@pytest.fixture
def app(postgres_url: str, bank: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


@pytest.fixture
def note(app: App) -> JobType[[int], int]:
    @app.job(queue="notes")
    async def note(number: int) -> int:
        return number

    return note


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[Subject]:
    async with SUBJECTS[request.param](postgres_url) as opened:
        yield opened
