"""Random histories under limits: every claim grants what the contract's words say, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasemill.kernel.events import LeaseGranted, RateCharged, RateHeld
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.testing.rules import rule
from tests.kernel.limited_world import LIMITED_STEPS, LimitedWorld, limited_history
from tests.kernel.test_histories import DrawnChooser
from tests.kernel.world import reloaded


@rule("T1", "T2", "T4", "T6", "T8", "T10", "T11", "T13", "T14", "T15")
@pytest.mark.parametrize("seed", range(8))
def test_under_limits_a_long_history_keeps_every_promise(seed: int) -> None:
    world = limited_history(seed, 300)
    world.check_replay()
    twin = reloaded(world.state)
    assert digest(twin) == digest(world.state)
    assert violations(twin) == []


@rule("T1", "T2", "T4")
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_under_limits_every_short_history_keeps_every_promise(data: st.DataObject) -> None:
    world = LimitedWorld(DrawnChooser(data))
    ways = [step for _, step in LIMITED_STEPS]
    for _ in range(world.choose.number(5, 40)):
        world.choose.one_of(ways)(world)
    world.check_replay()


def test_the_histories_meet_what_they_are_about() -> None:
    seen: Counter[type] = Counter(type(event) for seed in range(2) for event in limited_history(seed, 300).events)
    assert seen[LeaseGranted] > 20
    assert seen[RateCharged] > 5
    assert seen[RateHeld] > 0
