"""Limits in the kernel: what a claim costs under them, and how rates count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, LeaseGranted, RateCharged, RateHeld
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import check, run
from leasemill.kernel.model import SECOND, JobSpec, JobState, LimitTerms, LimitUse, Rules, UniqueKey, UniqueUntil
from leasemill.kernel.state import State
from leasemill.testing.rules import rule
from tests.kernel.test_cost import FEW, MANY, lines_run
from tests.kernel.world import reloaded

NOW = 10**15


def use(text: str) -> LimitUse:
    return LimitUse(*text.split("/"))


def specs(count: int, prefix: str, *uses: str, **fields: Any) -> list[JobSpec]:
    rules = Rules(limits=tuple(use(one) for one in uses)) if uses else None
    return [JobSpec(f"{prefix}-{number}", "queue", "kind", rules=rules, **fields) for number in range(count)]


def enqueue(state: State, count: int, prefix: str, *uses: str, at: int = NOW, **fields: Any) -> None:
    run(state, c.Enqueue(specs(count, prefix, *uses, **fields)), at)


def set_limit(state: State, name: str, at: int = NOW, **terms: int) -> list[AnyEvent]:
    command = c.SetLimit(name, LimitTerms(**terms), "ada", "why")
    check(command)
    return run(state, command, at)[0]


def claim(state: State, limit: int = 1, at: int = NOW, slots: int | None = None) -> list[c.Lease]:
    tokens = [f"token-{state.fence}-{number}" for number in range(limit)]
    return run(state, c.Claim("worker", ["queue"], limit, tokens, slots=slots), at)[1]


def ids(leases: list[c.Lease]) -> list[str]:
    return [lease.job.id for lease in leases]


def ack(state: State, lease: c.Lease, at: int = NOW) -> None:
    run(state, c.Ack([c.AckReport(lease.job.id, lease.token)]), at)


def due_in(state: State, at: int = NOW) -> int | None:
    return run(state, c.DueIn(["queue"]), at)[1]


def one_full_limit(count: int) -> State:
    state = State()
    set_limit(state, "a", places=1)
    enqueue(state, count, "waits", "a", priority=9)
    claim(state)
    enqueue(state, 10, "job")
    return state


def full_keys(count: int) -> State:
    state = State()
    set_limit(state, "a", places=1)
    for number in range(count):
        enqueue(state, 3, f"key-{number}", f"a/{number}", priority=9)
    assert len(claim(state, 10_000)) == count
    claim(state)
    enqueue(state, 10, "job")
    return state


def keys_behind_a_full_name(count: int) -> State:
    state = State()
    set_limit(state, "shared", places=1)
    set_limit(state, "a", places=1)
    for number in range(count):
        enqueue(state, 1, f"key-{number}", "shared", f"a/{number}", priority=9)
    claim(state)
    enqueue(state, 10, "job")
    return state


def rated_keys(count: int) -> State:
    state = State()
    set_limit(state, "a", rate=1, per_us=SECOND)
    for number in range(count):
        enqueue(state, 3, f"key-{number}", f"a/{number}", priority=9)
    assert len(claim(state, 10_000)) == count
    claim(state)
    enqueue(state, 10, "job")
    return state


@rule("T4", "T5", "C4")
@pytest.mark.parametrize("state_of", [one_full_limit, full_keys, keys_behind_a_full_name, rated_keys])
def test_a_claim_costs_no_more_among_many_jobs_that_wait_for_a_limit(state_of: Any) -> None:
    few, many = state_of(FEW), state_of(MANY)
    assert lines_run(lambda: claim(many, 3)) <= 1.5 * lines_run(lambda: claim(few, 3)) + 50
    assert len(claim(many, 3)) == 3


@rule("T5")
@pytest.mark.parametrize("state_of", [one_full_limit, keys_behind_a_full_name])
def test_a_freed_place_costs_no_more_among_many_jobs_that_wait_for_it(state_of: Any) -> None:
    def free_and_claim(state: State) -> int:
        held = next(job for job in state.jobs.values() if job.state is JobState.LEASED)

        def step() -> None:
            run(state, c.Ack([c.AckReport(held.spec.id, held.executions[-1].token)]), NOW)
            assert ids(claim(state)) != [held.spec.id]

        return lines_run(step)

    assert free_and_claim(state_of(MANY)) <= 1.5 * free_and_claim(state_of(FEW)) + 50


@rule("T4")
def test_one_full_key_in_front_holds_up_nobody() -> None:
    state = State()
    set_limit(state, "a", places=2)
    enqueue(state, 100, "hot", "a/hot")
    enqueue(state, 1, "cold", "a/cold")
    enqueue(state, 1, "plain")
    assert ids(claim(state, 10)) == ["hot-0", "hot-1", "cold-0", "plain-0"]


@rule("T7", "T3")
def test_a_lease_that_time_ended_gives_its_place_to_the_next_and_its_late_report_gives_back_nothing() -> None:
    state = State()
    set_limit(state, "a", places=1)
    enqueue(state, 3, "job", "a")
    (first,) = claim(state)
    later = NOW + 31 * SECOND
    (again,) = claim(state, 3, at=later)
    assert again.job.id == first.job.id
    _, (outcome,) = run(state, c.Ack([c.AckReport(first.job.id, first.token)]), later)
    assert isinstance(outcome, c.Lost)
    assert claim(state, 3, at=later) == []


@rule("T8")
def test_a_claim_takes_at_most_as_many_jobs_under_limits_as_it_has_slots() -> None:
    state = State()
    set_limit(state, "a", places=10)
    enqueue(state, 3, "limited", "a", priority=1)
    enqueue(state, 3, "plain")
    assert ids(claim(state, 10, slots=2)) == ["limited-0", "limited-1", "plain-0", "plain-1", "plain-2"]
    assert ids(claim(state, 10, slots=0)) == []
    assert ids(claim(state, 10)) == ["limited-2"]


@rule("T9")
def test_a_job_is_under_at_most_four_limits_and_names_none_of_a_queue() -> None:
    check(c.Enqueue(specs(1, "job", "a", "b", "c", "d/key")))
    with pytest.raises(Invalid, match="at most 4"):
        check(c.Enqueue(specs(1, "job", "a", "b", "c", "d", "e")))
    with pytest.raises(Invalid, match="queues' own"):
        check(c.Enqueue(specs(1, "job", "queue:mail")))


@rule("T10")
def test_a_rate_grants_its_burst_and_then_one_after_the_other() -> None:
    state = State()
    set_limit(state, "a", rate=10, per_us=SECOND, burst=3)
    enqueue(state, 10, "job", "a")
    assert len(claim(state, 10)) == 3
    assert due_in(state) == SECOND // 10
    assert claim(state, 10, at=NOW + SECOND // 10 - 1) == []
    assert len(claim(state, 10, at=NOW + SECOND // 10)) == 1
    assert len(claim(state, 10, at=NOW + SECOND)) == 3


@rule("T11")
def test_a_release_gives_back_nothing_of_the_rate() -> None:
    state = State()
    set_limit(state, "a", rate=1, per_us=SECOND)
    enqueue(state, 1, "job", "a")
    (lease,) = claim(state)
    run(state, c.Release([c.ReleaseReport(lease.job.id, lease.token)]), NOW)
    assert claim(state) == []
    assert due_in(state) == SECOND


@rule("T12")
def test_a_job_that_waits_for_a_rate_is_due_at_an_instant_and_one_that_waits_for_a_place_at_none() -> None:
    state = State()
    set_limit(state, "rated", rate=1, per_us=SECOND)
    set_limit(state, "placed", places=1)
    enqueue(state, 2, "placed", "placed")
    claim(state)
    assert due_in(state) is None
    enqueue(state, 2, "rated", "rated")
    assert due_in(state) == 0
    claim(state)
    assert due_in(state) == SECOND
    assert due_in(state, NOW + SECOND) == 0


@rule("T13")
def test_a_throttled_job_holds_its_limit_and_uses_no_retry() -> None:
    state = State()
    set_limit(state, "a", rate=100, per_us=SECOND, burst=5)
    enqueue(state, 5, "job", "a/x")
    enqueue(state, 1, "other", "a/y")
    (lease,) = claim(state)
    report = c.ReleaseReport(lease.job.id, lease.token, None, "429", "a", 30 * SECOND)
    events, _ = run(state, c.Release([report]), NOW)
    assert [type(event) for event in events][1:] == [RateHeld]
    (other,) = claim(state, 10)
    assert other.job.id == "other-0"
    ack(state, other)
    assert due_in(state) == 30 * SECOND
    assert claim(state, 10, at=NOW + 30 * SECOND - 1) == []
    (again,) = claim(state, 10, at=NOW + 30 * SECOND)
    assert (again.job.id, again.retries) == (lease.job.id, 0)


@rule("T14")
def test_a_changed_rate_holds_from_the_next_grant() -> None:
    state = State()
    set_limit(state, "a", rate=1, per_us=86_400 * SECOND)
    enqueue(state, 10, "job", "a")
    claim(state)
    assert due_in(state) == 86_400 * SECOND
    set_limit(state, "a", rate=100, per_us=SECOND, burst=2)
    assert due_in(state) == SECOND // 100
    assert len(claim(state, 10, at=NOW + SECOND // 100)) == 1


@rule("T15")
def test_a_clock_that_goes_back_gives_no_grants() -> None:
    state = State()
    set_limit(state, "a", rate=1, per_us=SECOND)
    enqueue(state, 10, "job", "a", at=NOW - 60 * SECOND)
    claim(state)
    assert due_in(state, NOW + SECOND) == 0
    for at in (NOW - 5 * SECOND, NOW - 1, NOW + SECOND - 1):
        assert claim(state, 10, at=at) == []
        assert due_in(state, at) == NOW + SECOND - at
    assert len(claim(state, 10, at=NOW + SECOND)) == 1


def test_rates_of_keys_that_are_not_in_use_are_forgotten() -> None:
    state = State()
    set_limit(state, "a", rate=1, per_us=SECOND)
    for number in range(500):
        enqueue(state, 1, f"key-{number}", f"a/{number}")
    for lease in claim(state, 500):
        ack(state, lease)
    assert len(state.limits["a"].tallies) == 500
    enqueue(state, 1, "late", "a/late", at=NOW + 100 * SECOND)
    (lease,) = claim(state, at=NOW + 100 * SECOND)
    assert list(state.limits["a"].tallies) == ["late"]
    ack(state, lease, NOW + 100 * SECOND)
    assert violations(state) == []


@rule("T10")
@given(
    rate=st.integers(1, 7),
    burst=st.integers(1, 4),
    per=st.sampled_from([1, 10, 60]),
    pauses=st.lists(st.integers(0, 40_000_000), min_size=1, max_size=40),
)
def test_in_every_interval_there_are_at_most_n_and_burst_less_one_grants(
    rate: int, burst: int, per: int, pauses: list[int]
) -> None:
    state, now = State(), NOW
    set_limit(state, "a", rate=rate, per_us=per * SECOND, burst=burst)
    enqueue(state, 400, "job", "a")
    granted: list[int] = []
    for pause in pauses:
        now += pause
        granted += [now] * len(claim(state, 10, at=now))
    for index, first in enumerate(granted):
        inside = [at for at in granted[index:] if at < first + per * SECOND]
        assert len(inside) <= rate + burst - 1


def test_what_is_restored_from_an_image_grants_the_same() -> None:
    state = State()
    set_limit(state, "a", rate=2, per_us=SECOND)
    set_limit(state, "b", places=2)
    set_limit(state, "queue:queue", places=4)
    enqueue(state, 3, "job", "a", "b/x")
    enqueue(state, 3, "more", "b/x")
    enqueue(state, 3, "plain")
    claim(state, 2)
    twin = reloaded(state)
    assert digest(twin) == digest(state)
    assert violations(twin) == []
    for at in (NOW, NOW + SECOND):
        assert ids(claim(twin, 5, at=at)) == ids(claim(state, 5, at=at))


def test_a_grant_is_charged_once_for_each_rate() -> None:
    state = State()
    set_limit(state, "a", rate=1, per_us=SECOND, burst=2)
    set_limit(state, "b", places=5)
    enqueue(state, 3, "job", "a/x", "b")
    events, _ = run(state, c.Claim("worker", ["queue"], 3, ["1", "2", "3"]), NOW)
    assert [type(event) for event in events] == [LeaseGranted, RateCharged] * 2


def test_a_debounced_job_under_a_limit_is_found_at_its_new_time() -> None:
    state = State()
    set_limit(state, "a", places=1)
    key = UniqueKey("key", UniqueUntil.STARTED, at_most_us=60 * SECOND)
    rules = Rules(unique=key, limits=(LimitUse("a"),))
    for number in range(2):
        job = JobSpec(f"job-{number}", "queue", "kind", delay_us=5 * SECOND, rules=rules)
        run(state, c.Enqueue([job]), NOW + number * SECOND)
        assert violations(state) == []
    assert claim(state, at=NOW + 5 * SECOND) == []
    assert ids(claim(state, at=NOW + 6 * SECOND)) == ["job-0"]


@rule("T12")
def test_asking_when_the_next_is_due_costs_no_more_among_many_rates() -> None:
    few, many = rated_keys(FEW), rated_keys(MANY)
    for state in (few, many):
        claim(state, 10)
        assert due_in(state) == SECOND
    assert lines_run(lambda: due_in(many)) <= 1.5 * lines_run(lambda: due_in(few)) + 50


@rule("T12")
def test_a_rate_behind_a_full_limit_makes_nothing_due() -> None:
    """Also if the rate was looked at before the limit was full."""
    state = State()
    set_limit(state, "a", places=1)
    set_limit(state, "r", rate=1, per_us=10 * SECOND)
    enqueue(state, 2, "rated", "r/x")
    claim(state)
    enqueue(state, 1, "both", "a", "r/x")
    assert due_in(state) == 10 * SECOND
    enqueue(state, 1, "holder", "a", priority=9)
    claim(state)
    run(state, c.Cancel(["rated-1"], "ada", "why"), NOW)
    assert due_in(state) is None
    assert due_in(reloaded(state)) is None
