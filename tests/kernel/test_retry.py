"""The arithmetic of policies: precedence, back-off, bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US, check_policy
from leasemill.kernel.model import NEVER, SECOND, Job, JobSpec, OnFailure, Policy, Terms
from leasemill.kernel.transitions.grant import expires_at
from leasemill.kernel.transitions.retry import backoff_us, exhausted, quarantined, settle, settle_acquired
from leasemill.testing.rules import rule

VALUES: dict[str, list[Any]] = {
    "max_retries": [0, 1, 2],
    "lease_ttl_us": [1_000, 2_000, 3_000],
    "timeout_us": [1, 2, 3],
    "max_expirations": [1, 2, 4],
    "backoff_base_us": [0, 1, 2],
    "backoff_cap_us": [10, 11, 12],
    "on_failure": [OnFailure.BLOCK, OnFailure.CONTINUE, OnFailure.BLOCK],
}
DURATIONS = st.integers(0, LONGEST_US)


def job_with(**fields: Any) -> Job:
    return Job(JobSpec("job", "queue", "kind"), 1, 0, 0, 0, **fields)


@rule("I5")
@pytest.mark.parametrize("name", VALUES)
def test_each_field_is_settled_by_the_first_who_asks(name: str) -> None:
    default = getattr(Terms(), name)
    for asks in itertools.product([True, False], repeat=3):
        layers = [Policy(**{name: value}) if asked else None for asked, value in zip(asks, VALUES[name], strict=True)]
        asked_values = [value for asked, value in zip(asks, VALUES[name], strict=True) if asked]
        assert getattr(settle(*layers), name) == (asked_values[0] if asked_values else default)


def test_the_table_has_every_field_of_a_policy() -> None:
    assert set(VALUES) == set(Policy.__struct_fields__) == set(Terms.__struct_fields__)


@rule("I5")
def test_an_empty_policy_asks_for_nothing() -> None:
    assert settle(None, None, None) == settle(Policy(), Policy(), Policy()) == Terms()


@rule("I5")
@given(st.integers(1_000, LONGEST_US))
def test_the_timeout_follows_the_lease_that_was_settled(lease_us: int) -> None:
    assert settle(None, Policy(lease_ttl_us=lease_us), Policy(lease_ttl_us=5_000)).timeout_us == 3 * lease_us


@rule("N9")
def test_an_acquired_lease_has_no_end_unless_somebody_asked() -> None:
    assert settle_acquired(None, None) == Terms(lease_ttl_us=NEVER, timeout_us=NEVER)
    assert settle_acquired(Policy(max_retries=7), None).max_retries == 7
    assert settle_acquired(None, Policy(lease_ttl_us=5_000)).lease_ttl_us == 5_000
    assert expires_at(settle_acquired(None, None), 123) == NEVER


@rule("F1")
@example(1, LONGEST_US, 1_000, 0.5)
@given(DURATIONS, DURATIONS, st.integers(0, 1_000), st.floats(0, 1, exclude_max=True))
def test_the_back_off_is_between_nothing_and_its_ceiling(base: int, cap: int, retries: int, jitter: float) -> None:
    terms = Terms(backoff_base_us=base, backoff_cap_us=cap)
    delay_us = backoff_us(terms, retries, jitter)
    ceiling_us = min(base * 2**retries, cap)
    assert 0 <= delay_us <= ceiling_us
    assert abs(delay_us - ceiling_us * jitter) <= 1 + ceiling_us / 2**50


@rule("F1")
def test_the_exponent_begins_at_nothing() -> None:
    ceilings = [backoff_us(Terms(), retries, 0.5) * 2 / SECOND for retries in range(8)]
    assert ceilings == [0.5, 1, 2, 4, 8, 16, 30, 30]


@rule("F2")
@given(st.integers(0, 10), st.integers(0, 10))
def test_a_job_is_exhausted_when_no_retry_is_left(retries: int, allowed: int) -> None:
    assert exhausted(job_with(retries=retries), Terms(max_retries=allowed)) == (retries >= allowed)


@rule("F4")
@given(st.integers(0, 10), st.integers(1, 10))
def test_the_expiration_that_reaches_the_bound_is_the_last(expirations: int, allowed: int) -> None:
    assert quarantined(job_with(expirations=expirations), Terms(max_expirations=allowed)) == (
        expirations + 1 >= allowed
    )


@rule("L1")
@given(st.integers(0, 2**60), st.integers(1_000, LONGEST_US))
def test_a_lease_lasts_as_long_as_its_terms_say(now: int, lease_us: int) -> None:
    assert expires_at(Terms(lease_ttl_us=lease_us), now) == now + lease_us


@rule("F6")
@given(DURATIONS, DURATIONS)
def test_a_base_above_its_cap_is_refused(base: int, cap: int) -> None:
    policy = Policy(backoff_base_us=base, backoff_cap_us=cap)
    if base > cap:
        with pytest.raises(Invalid):
            check_policy(policy)
    else:
        check_policy(policy)
