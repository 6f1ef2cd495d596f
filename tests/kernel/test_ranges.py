"""Ranges against a set of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leasemill.kernel.index.ranges import Ranges
from leasemill.testing.rules import rule

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80)


def expanded(ranges: Ranges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@rule("N10")
@given(CHANGES)
def test_ranges_hold_the_numbers_a_set_would(changes: list[tuple[bool, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for adds, number in changes:
        if adds:
            ranges.add(number)
            model.add(number)
        else:
            ranges.discard(number)
            model.discard(number)
        assert expanded(ranges) == model
        assert all(earlier[1] + 1 < later[0] for earlier, later in pairwise(ranges))
    assert {number for number in range(32) if number in ranges} == model
    assert bool(ranges) == bool(model)
    assert list(Ranges(list(ranges))) == list(ranges)


@rule("N10")
def test_numbers_that_follow_one_another_are_one_range() -> None:
    ranges = Ranges()
    for number in [*range(0, 1_000, 2), *range(1, 1_000, 2)]:
        ranges.add(number)
    assert list(ranges) == [(0, 999)]
    assert len(ranges) == 1
    ranges.discard(500)
    assert list(ranges) == [(0, 499), (501, 999)]
