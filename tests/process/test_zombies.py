"""Workers stopped past their leases: what they report late is refused, and they know it.

That the other worker has finished the job by then is in tests/failures/test_duplicate_retry.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.zombie import Stage, Variant, play_all, staged


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged(None) as made:
        yield made


def test_a_stopped_worker_changes_nothing_any_more(stage: Stage) -> None:
    runs = play_all(stage, [Variant.RUNNING, Variant.FAILURE], runs=2, parallel=4)
    assert [run for run in runs if not run.is_right] == []
    assert [run.effects for run in runs] == [1] * 4
    for run in runs:
        # Who notices first: the heartbeat by its extend, or the run by the time that has passed.
        assert {"extend", "release"} & set(run.refused)
