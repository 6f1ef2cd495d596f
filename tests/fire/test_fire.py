"""A slice of `make chaos STORE=postgresql`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.testing.rules import rule
from tests.fire import cuts, faults
from tests.fire.chaos import settled_seed
from tests.fire.faults import Ground
from tests.fire.load import Verdict

SCENES = (cuts.enqueue, cuts.claim, cuts.ack, cuts.ack_in_lane, cuts.nack, cuts.user_commit, cuts.user_enqueue)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    seed = settled_seed(None)
    print(f"seed {seed}; again: SEED={seed} make test PYTEST_ARGS='tests/fire'")  # noqa: T201  (shown on failure)
    folder: Path = tmp_path_factory.mktemp("fire")
    folder.chmod(0o755)
    ground = Ground(folder, seed)
    with ground.server:
        yield ground


def check(verdict: Verdict) -> None:
    assert verdict.wrong == []
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.runs > 0


@rule("L3", "X4", "X5")
@pytest.mark.timeout(120)
def test_a_killed_workers_jobs_take_effect_once(ground: Ground) -> None:
    check(faults.workers_killed(ground, 3))


@rule("X4", "X5")
@pytest.mark.timeout(120)
def test_workers_outlive_a_server_that_is_stopped_at_once(ground: Ground) -> None:
    check(faults.server_stopped(ground, "immediate", 2))


@rule("X4", "X5")
@pytest.mark.timeout(120)
def test_workers_outlive_the_end_of_every_session(ground: Ground) -> None:
    check(faults.backends_terminated(ground, 3))


@rule("E2", "L6", "X5")
@pytest.mark.timeout(120)
def test_a_call_whose_answer_was_cut_off_is_the_same_call_when_repeated(ground: Ground) -> None:
    check(cuts.connections_cut(ground, 1, SCENES))
