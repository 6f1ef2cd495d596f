"""A few kills of workers on PostgreSQL while schedules, limits and groups are at work; see tests/process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from leasemill.testing.rules import rule
from tests.process.rules_chaos import PARTS
from tests.process.rules_lab import RulesLab
from tests.process.rules_parts import Size
from tests.process.test_rules_chaos import BACKLOG, SEED_WITH_A_STOP


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_when_workers_are_killed(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as cleaning:
        size = Size(kills=5, groups=8, members=4)
        outcome = RulesLab(postgres_url, tmp_path, 1, PARTS, size, cleaning).run()
    assert outcome.wrong == []
    assert outcome.expired_leases > 0, "no kill came while a worker worked: nothing was shown"


@rule("T1", "T3", "T10")
@pytest.mark.timeout(180)
def test_limits_hold_when_eight_workers_are_killed_and_stopped(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as cleaning:
        outcome = RulesLab(postgres_url, tmp_path, SEED_WITH_A_STOP, ["backlog"], BACKLOG, cleaning).run()
    assert outcome.wrong == []
    assert outcome.stops > 0
    assert outcome.expired_leases > 0, "no kill came while a worker worked: nothing was shown"
