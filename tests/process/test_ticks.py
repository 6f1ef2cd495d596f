"""Two schedulers whose clocks are apart, for a few hours around a change of the local clocks; see ticks_lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.testing.rules import rule
from tests.process.ticks_lab import BEGINS, race


@rule("P2", "P3", "P7")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("begin", BEGINS)
def test_schedulers_whose_clocks_are_apart_fire_each_tick_once(tmp_path: Path, begin: str) -> None:
    raced = race(f"file:{tmp_path / 'jobs'}", BEGINS[begin], steps=24)
    assert raced.wrong == []
    assert raced.ticks > 80
