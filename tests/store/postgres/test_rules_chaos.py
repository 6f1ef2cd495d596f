"""A few kills of workers on PostgreSQL while schedules, limits and groups are at work; see tests/process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.rules_chaos import PARTS
from tests.process.rules_lab import RulesLab
from tests.process.rules_parts import Size


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_when_workers_are_killed(postgres_url: str, tmp_path: Path) -> None:
    with ExitStack() as cleaning:
        size = Size(kills=5, groups=8, members=4)
        outcome = RulesLab(postgres_url, tmp_path, 1, PARTS, size, cleaning).run()
    assert outcome.wrong == []
    assert outcome.expired_leases > 0, "no kill came while a worker worked: nothing was shown"
