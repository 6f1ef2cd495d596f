"""Real processes, killed: a short slice of what `make chaos` does."""

from __future__ import annotations

from pathlib import Path

from leasemill.testing.rules import rule
from tests.crash import killed
from tests.crash.hammer import Killing


@rule("W2", "W6", "W11")
def test_processes_killed_one_after_the_other_lose_and_double_nothing(tmp_path: Path) -> None:
    toll = Killing(tmp_path, seed=1).run(kills=8)
    assert toll.kills == 8
    assert toll.jobs > 0


@rule("W1")
def test_the_script_that_is_killed_in_chaos_runs_to_its_end(tmp_path: Path) -> None:
    killed.run_script(tmp_path / "jobs", tmp_path / "journal")
    killed.check(tmp_path / "jobs", (tmp_path / "journal").stat().st_size, "not killed")
