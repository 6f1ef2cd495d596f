"""The stuck group: a member ends and nobody counts it, so its group waits for it for ever.

Guard: every end of a job counts in the record that is that end, whoever noticed it (B1, B2).
"""

from __future__ import annotations

import pytest

from leasemill.kernel.model import JobState, Policy
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.group_steps import BOTH, END, MEMBER, NONE, callbacks, counts, create, group_of, seal
from leasemill.testing.conformance.steps import (
    acked,
    claim,
    claim_nothing,
    enqueue_many,
    enqueue_one,
    expired,
    only,
    redrive,
    started,
    state_of,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, without

GUARD = "a member that is given up is not counted"


def one_dies_with_its_worker(harness: Harness) -> None:
    """Two members succeed; the third takes its worker with it, and nobody is left to report that."""
    create(harness)
    enqueue_many(harness, "first", "second", rules=MEMBER)
    enqueue_one(harness, "poison", rules=MEMBER, policy=Policy(max_expirations=1))
    seal(harness)
    *others, poison = claim(harness, 3)
    for lease in others:
        acked(harness, lease)
    started(harness, poison)
    expired(harness, poison)
    assert state_of(harness, "poison") is JobState.DEAD


def test_reproduce_a_member_that_nobody_counts_leaves_its_group_waiting_for_ever(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    one_dies_with_its_worker(harness)
    claim_nothing(harness)
    assert counts(harness) == (3, 2, 0, 0, 0, 1), "nothing is left to run, and one is unfinished"
    assert (group_of(harness).is_over, callbacks(harness)) == (False, NONE)


@rule("B1", "B2")
def test_prevent_the_record_of_the_end_is_the_count_and_enqueues_the_callback(harness: Harness) -> None:
    one_dies_with_its_worker(harness)
    assert counts(harness) == (3, 2, 0, 1, 0, 0)
    assert (group_of(harness).is_over, callbacks(harness)) == (True, END)


@rule("B2", "B3")
def test_prevent_a_group_whose_producer_died_is_found_and_sealed(harness: Harness) -> None:
    create(harness)
    enqueue_one(harness, "first", rules=MEMBER)
    acked(harness, only(claim(harness)))
    assert [group.id for group in harness.store.groups(open_only=True)] == [group_of(harness).id]
    assert callbacks(harness) == NONE, "more members may come, so it must not end by itself"
    seal(harness)
    assert callbacks(harness) == BOTH
    assert harness.store.groups(open_only=True) == []


@rule("B2", "B4")
def test_recover_a_loss_of_power_comes_before_the_end_and_its_callback_or_after_both(failing: FailingMachine) -> None:
    one_dies_with_its_worker(failing)
    failing.lose_power()
    assert counts(failing) == (3, 2, 0, 1, 0, 0)
    assert callbacks(failing) == END
    redrive(failing, "poison")
    failing.lose_power()
    assert counts(failing) == (3, 2, 0, 0, 0, 1)
    acked(failing, only(claim(failing)))
    failing.kill()
    assert (group_of(failing).is_over, callbacks(failing)) == (True, BOTH)
