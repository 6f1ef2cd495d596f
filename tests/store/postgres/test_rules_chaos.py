"""A few kills of workers on PostgreSQL while schedules, limits and groups are at work; see tests/process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.testing.rules import rule
from tests.process.rules_chaos import PARTS
from tests.process.rules_parts import Size
from tests.process.test_rules_chaos import BACKLOG, SEED_WITH_A_STOP, run_until_shown
from tests.store.postgres.conftest import TABLES


@pytest.fixture
def empty_store(postgres_url: str, schema: str, admin: psycopg.Connection[Any]) -> Callable[[int], str]:
    def empty(_number: int) -> str:
        admin.execute(";".join(f"delete from {schema}.{table}" for table in TABLES).encode())
        return postgres_url

    return empty


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_when_workers_are_killed(empty_store: Callable[[int], str], tmp_path: Path) -> None:
    run_until_shown(empty_store, tmp_path, 1, PARTS, Size(kills=5, groups=8, members=4))


@rule("T1", "T3", "T10")
@pytest.mark.timeout(180)
def test_limits_hold_when_eight_workers_are_killed_and_stopped(
    empty_store: Callable[[int], str], tmp_path: Path
) -> None:
    outcome = run_until_shown(empty_store, tmp_path, SEED_WITH_A_STOP, ["backlog"], BACKLOG)
    assert outcome.stops > 0
