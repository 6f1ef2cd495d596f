"""Fifty kills of a partitioned stream's orchestrator: run by `make chaos-worklease`, not by `make test`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.postgres import PostgresServer
from tests.worklease.kills import Scene

KILLS = 50


@pytest.fixture(params=["file", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file:{tmp_path / 'offsets'}"
        return
    with PostgresServer() as server:
        conninfo, options = parse_url(server.url())
        with psycopg.connect(conninfo, autocommit=True) as connection:
            migrate(connection, options.schema)
        yield server.url()


@pytest.mark.timeout(600)
def test_every_offset_is_processed_once_and_in_order_whatever_is_killed(tmp_path: Path, url: str) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    outcome = Scene(tmp_path, url, seed).run(KILLS)
    print(f"\n{url.partition(':')[0]}: {KILLS} kills, {outcome.kills_at_work} of them at work, seed {seed}")  # noqa: T201
    print(f"{outcome.tried_again} offsets were taken up by another process\n{outcome.audit}", end="")  # noqa: T201
    assert outcome.holds, f"again: SEED={seed} make chaos-worklease"
    assert outcome.kills_at_work >= KILLS // 2
    assert outcome.tried_again > 0, "no kill came between two offsets' ends: nothing was shown"
