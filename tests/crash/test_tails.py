"""A process dies at a step of its turn with the lock. A slice of what `make chaos` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.testing.rules import rule
from tests.crash import tails


@rule("W2", "W6", "W8", "W9")
@pytest.mark.parametrize("victim", tails.VICTIMS)
def test_whoever_comes_after_a_process_that_died_finds_what_it_wrote(tmp_path: Path, victim: str) -> None:
    cases = [case for case in tails.cases(tmp_path) if case[0] == victim]
    assert len({step for _, _, step, _, _ in cases}) >= 8
    for case in cases[::47]:
        tails.run_case(tmp_path, *case)


@rule("W2", "W9")
@pytest.mark.parametrize("first", tails.SUCCESSORS)
def test_nobody_makes_the_next_writer_believe_that_nothing_is_behind_the_tail(tmp_path: Path, first: str) -> None:
    """Opening a folder counted as having looked once: the frame of a process that died was overwritten."""
    for victim in ("appends unread", "decides and appends"):
        for step in range(1, tails.steps_of(tmp_path, victim, was_last=True) + 1):
            tails.run_case(tmp_path, victim, True, step, first, "appends unread")


@rule("W8", "W9")
def test_a_process_that_appends_unread_goes_on_where_a_snapshot_stands_for_the_recorded_tail(tmp_path: Path) -> None:
    """The tail was recorded before a rotation whose process died, and its segment is gone."""
    for second in ("appends unread", "opens and appends unread"):
        tails.run_case(tmp_path, "rotates unread", False, tails.SEGMENT_STORE, "takes a snapshot", second)
