"""When and how much: the worker's decisions, without a clock."""

from __future__ import annotations

from collections import Counter

import pytest

from leasemill.store.backoff import backoff_s
from leasemill.worker import pacing


def test_a_store_that_stays_away_is_asked_less_and_less_often() -> None:
    waits = [backoff_s(failures, 1.0) for failures in range(1, 12)]
    assert waits[0] == pytest.approx(0.05)
    assert waits == sorted(waits)
    assert waits[-1] == backoff_s(10_000, 1.0) == 1.0
    assert all(backoff_s(failures, 0.0) == wait / 2 for failures, wait in enumerate(waits, 1))


@pytest.mark.parametrize("lease_s", [0.05, 2, 30, 120])
def test_a_lease_is_extended_before_a_third_of_it_has_passed(lease_s: float) -> None:
    assert pacing.beat_at(100, lease_s, None) - 100 < lease_s / 3
    assert pacing.beat_at(100, lease_s, lease_s / 10) - 100 == pytest.approx(lease_s / 10)
    assert pacing.beat_at(100, lease_s, 1_000) == pacing.beat_at(100, lease_s, None)


def test_a_lease_is_relied_on_for_less_than_it_lasts() -> None:
    assert pacing.held_until(100, 30) == pytest.approx(127)


def test_leases_are_extended_together_unless_they_are_new() -> None:
    assert not pacing.worth_extending(104, 100, 30, None)
    assert pacing.worth_extending(105, 100, 30, None)


@pytest.mark.parametrize("longest_s", [None, 0.1, 1, 1_000])
def test_a_lease_that_is_due_is_worth_extending(longest_s: float | None) -> None:
    assert pacing.worth_extending(pacing.beat_at(100, 30, longest_s), 100, 30, longest_s)


@pytest.mark.parametrize(
    ("pace", "round_trip_s", "ahead"),
    [
        (0, 0.001, 0),  # nothing is known yet, or nothing ran
        (10, 0.001, 0),  # slow handlers: others may have the jobs
        (1_000, 0.000_1, 5),
        (20_000, 0.000_1, 100),
        (1_000, 0.003, 48),  # a store that takes longer
        (10_000, 0.003, 480),
        (1_000, 60, 100),  # a store that takes very long
        (1_000_000, 0.003, 1_000),
    ],
)
def test_jobs_are_held_ahead_to_cover_the_stores_answers_and_no_further(
    pace: float, round_trip_s: float, ahead: int
) -> None:
    assert pacing.prefetch(pace, round_trip_s, most=1_000) == ahead


def test_the_pace_is_the_average_at_the_beginning() -> None:
    first = pacing.pace(0.0, 10, 0.005, known_s=0.0)
    assert first == pytest.approx(2_000)
    known_s = pacing.known_s(0.0, 10, 0.005)
    assert pacing.pace(first, 0, 0.005, known_s) == pytest.approx(1_000)
    assert pacing.pace(first, 0, 0.005, known_s=10) == pacing.pace(first, 0, 0.005)


def test_a_pause_is_a_new_beginning() -> None:
    assert pacing.known_s(3.0, 0, pacing.PACE_MEMORY_S) == 0.0
    assert pacing.known_s(0.0, 0, 0.01) == 0.0
    assert pacing.known_s(3.0, 1, 1.0) == 4.0
    assert pacing.known_s(3.0, 0, 0.01) == pytest.approx(3.01)


def test_the_pace_follows_what_is_seen_and_forgets_what_was_long_ago() -> None:
    seen = pacing.pace(0.0, 100, 0.01)
    assert 0 < seen < 10_000
    for _ in range(200):
        seen = pacing.pace(seen, 100, 0.01)
    assert seen == pytest.approx(10_000, rel=0.01)
    assert pacing.pace(seen, 0, 60) == pytest.approx(0, abs=1)
    assert pacing.pace(seen, 5, 0.0) == seen


def test_the_round_trip_leans_to_the_latest() -> None:
    seen_s = 0.0
    for _ in range(30):
        seen_s = pacing.round_trip_s(seen_s, 0.01)
    assert seen_s == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(
    ("ahead", "active", "queued", "unreported", "size"),
    [
        (0, 0, 0, 0, 10),  # nothing held
        (0, 9, 0, 0, 1),  # one slot is free
        (0, 10, 0, 0, 0),  # all slots are taken
        (0, 5, 0, 5, 0),  # what is not reported yet is still held
        (100, 0, 0, 0, 110),
        (100, 10, 100, 0, 0),  # full
        (100, 10, 60, 0, 0),  # enough ahead for now
        (100, 10, 50, 0, 50),  # half of it used up
        (100, 10, 0, 100, 0),  # the store does not answer: no more claims
        (100, 2, 0, 100, 8),
        (0, 10, 5, 0, 0),  # handlers became slow
    ],
)
def test_a_claim_fills_slots_and_what_is_held_ahead(
    ahead: int, active: int, queued: int, unreported: int, size: int
) -> None:
    assert pacing.claim_size(10, ahead, active, queued, unreported) == size


def test_never_more_is_held_than_slots_and_prefetch() -> None:
    for ahead in (0, 3, 20):
        for active in range(6):
            for queued in range(25):
                for unreported in range(25):
                    size = pacing.claim_size(5, ahead, active, queued, unreported)
                    assert size == 0 or size + active + queued + unreported <= 5 + ahead


def test_a_job_waits_for_a_slot_no_longer_than_its_lease_can_bear() -> None:
    assert pacing.patience_s(30) == 1.0
    assert pacing.patience_s(1) == pytest.approx(0.3)


def test_waiting_ends_when_something_is_due() -> None:
    assert pacing.idle_s(None, 1.0) == 1.0
    assert pacing.idle_s(250_000, 1.0) == 0.25
    assert pacing.idle_s(60_000_000, 1.0) == 1.0


def test_news_that_bring_no_work_are_answered_more_slowly() -> None:
    assert [pacing.pause_s(number) for number in (0, 1)] == [0, 0]
    assert 0 < pacing.pause_s(2) < pacing.pause_s(5) < pacing.pause_s(100) == 0.01


def test_a_claim_is_not_repeated_for_longer_than_half_a_lease() -> None:
    assert not pacing.is_request_stale(100, 114, 30)
    assert pacing.is_request_stale(100, 116, 30)


def test_queues_come_first_as_often_as_their_weights_say_and_evenly() -> None:
    weights = {"billing": 3, "mail": 2, "default": 1}
    credit: dict[str, int] = {}
    first = []
    for _ in range(60):
        order, credit = pacing.queue_order(weights, credit)
        assert sorted(order) == sorted(weights)
        first.append(order[0])
    assert Counter(first) == {"billing": 30, "mail": 20, "default": 10}
    assert all(len(set(first[start : start + 6])) == 3 for start in range(0, 60, 6))


def test_reports_are_sent_at_once_when_idle_or_when_many_and_else_a_little_later() -> None:
    assert pacing.flush_in_s(1, 0, is_urgent=True) == 0
    assert pacing.flush_in_s(pacing.FLUSH_SIZE, 1, is_urgent=True) == 0
    assert 0 < pacing.flush_in_s(1, 1, is_urgent=True) <= 0.005


def test_ends_of_committed_jobs_wait_while_more_jobs_are_at_hand_than_reports_are_pending() -> None:
    assert pacing.flush_in_s(1, 0, is_urgent=False) == 0
    assert pacing.flush_in_s(1, 1, is_urgent=False) == 0
    assert pacing.flush_in_s(1, 2, is_urgent=False) == pacing.COMMITTED_WINDOW_S
    assert pacing.flush_in_s(pacing.FLUSH_SIZE, 1_000, is_urgent=False) == 0


@pytest.mark.parametrize(
    ("attempt", "retries", "expirations", "durably"),
    [
        (1, 0, 0, False),
        (2, 1, 0, False),  # it failed and reported it
        (2, 0, 0, True),  # it neither failed nor was seen to start
        (2, 0, 1, True),
        (4, 3, 0, False),
        (4, 2, 0, True),
        (9, 0, 0, True),  # redriven
    ],
)
def test_a_start_is_durable_first_when_an_earlier_run_did_not_report(
    attempt: int, retries: int, expirations: int, durably: bool
) -> None:
    assert pacing.starts_durably(attempt, retries, expirations) is durably
