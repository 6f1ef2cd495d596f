"""T: rates. How many grants there are in a time, and when the next one is due."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import Lease, Released, ReleaseReport
from leasemill.kernel.model import SECOND, JobState
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.limits import STRIPE, counts, declare, ids, limit_of, set_limit, under
from leasemill.testing.conformance.steps import (
    LANE,
    QUEUE,
    acked,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    enqueue_many,
    enqueue_one,
    expect,
    let_expire,
    nacked,
    only,
    pause,
    released,
    resume,
    spec,
    state_of,
)
from leasemill.testing.rules import rule

TENTH = SECOND // 10


def throttled(harness: Harness, lease: Lease, seconds: int) -> Released:
    """The service that a limit protects asked the holder of a lease to wait."""
    report = ReleaseReport(lease.job.id, lease.token, None, "429", STRIPE, seconds * SECOND)
    return expect(Released, only(harness.store.release([report])))


class Rating:
    @rule("T10")
    def test_a_rate_grants_its_burst_then_one_at_a_time(self, harness: Harness) -> None:
        set_limit(harness, rate=10, per_us=SECOND, burst=3)
        enqueue_many(harness, *"abcdefghij", rules=under(STRIPE))
        assert claim_ids(harness) == ["a", "b", "c"]
        claim_nothing(harness)
        harness.clock.advance(us=TENTH - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        assert claim_ids(harness) == ["d"]
        harness.clock.advance(s=5)
        assert claim_ids(harness) == ["e", "f", "g"]

    @rule("T10")
    def test_a_rate_has_no_border_at_which_it_doubles(self, harness: Harness) -> None:
        set_limit(harness, rate=5, per_us=SECOND)
        enqueue_many(harness, *(f"job-{number}" for number in range(40)), rules=under(STRIPE))
        granted: list[int] = []
        for _ in range(60):
            granted += [harness.clock.now()] * len(claim(harness, 10))
            harness.clock.advance(us=SECOND // 20)
        for index, first in enumerate(granted):
            assert len([at for at in granted[index:] if at < first + SECOND]) <= 5
        assert len(granted) >= 14

    @rule("T10")
    @pytest.mark.parametrize(
        ("rate", "per_s", "interval_us"), [(1, 86_400, 86_400 * SECOND), (100_000, 1, 10), (3, 1, 333_334)]
    )
    def test_rates_may_be_very_small_and_very_large(
        self, harness: Harness, rate: int, per_s: int, interval_us: int
    ) -> None:
        set_limit(harness, rate=rate, per_us=per_s * SECOND)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        acked(harness, claim_one(harness))
        assert harness.store.due_in([QUEUE]) == interval_us
        harness.clock.advance(us=interval_us)
        assert claim_ids(harness) == ["b"]

    @rule("T10")
    def test_each_key_has_a_rate_of_its_own(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=SECOND)
        for job_id, key in (("a", "x"), ("b", "x"), ("c", "y")):
            enqueue_one(harness, job_id, rules=under(f"{STRIPE}/{key}"))
        assert claim_ids(harness) == ["a", "c"]
        opens_at = harness.clock.now() + SECOND
        assert [(one.key, one.opens_at) for one in limit_of(harness).keys] == [("x", opens_at), ("y", opens_at)]

    @rule("T11")
    def test_every_attempt_is_charged_and_none_is_given_back(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=60 * SECOND)
        enqueue_one(harness, rules=under(STRIPE))
        released(harness, claim_one(harness))
        claim_nothing(harness)
        harness.clock.advance(s=60)
        nacked(harness, claim_one(harness), delay_us=0)
        claim_nothing(harness)
        harness.clock.advance(s=60)
        let_expire(harness, claim_one(harness))
        claim_nothing(harness)
        harness.clock.advance(s=30)
        assert claim_one(harness).attempt == 4

    @rule("T11", "T2")
    def test_rates_and_places_are_taken_together_or_not_at_all(self, harness: Harness) -> None:
        set_limit(harness, "rate", rate=1, per_us=SECOND)
        set_limit(harness, "other-rate", rate=1, per_us=10 * SECOND)
        set_limit(harness, "places", places=1)
        enqueue_one(harness, "holder", rules=under("places"))
        enqueue_one(harness, "needs-both", rules=under("rate", "places"))
        enqueue_one(harness, "needs-rate", rules=under("rate", "other-rate"))
        holder, rated = claim(harness, 10)
        assert ids([holder, rated]) == ["holder", "needs-rate"]
        acked(harness, holder)
        claim_nothing(harness)
        assert counts(harness, "places")[0] == 0
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["needs-both"]
        enqueue_one(harness, "needs-other", rules=under("other-rate"))
        claim_nothing(harness)
        harness.clock.advance(s=9)
        assert claim_ids(harness) == ["needs-other"]

    @rule("T4", "T12")
    def test_a_job_that_waits_for_a_rate_holds_up_no_other_and_is_due_at_an_instant(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=SECOND)
        enqueue_many(harness, "a", "b", rules=under(STRIPE), priority=9)
        enqueue_one(harness, "plain")
        assert claim_ids(harness) == ["a", "plain"]
        assert harness.store.due_in([QUEUE]) == SECOND
        harness.clock.advance(us=SECOND - 1)
        assert harness.store.due_in([QUEUE]) == 1
        harness.clock.advance(us=1)
        assert harness.store.due_in([QUEUE]) == 0

    @rule("T12")
    def test_the_slowest_of_two_rates_says_when(self, harness: Harness) -> None:
        set_limit(harness, "second", rate=10, per_us=SECOND)
        set_limit(harness, "hour", rate=2, per_us=3_600 * SECOND, burst=2)
        enqueue_many(harness, "a", "b", "c", rules=under("second", "hour"))
        acked(harness, claim_one(harness))
        harness.clock.advance(us=TENTH)
        acked(harness, claim_one(harness))
        opens_at = limit_of(harness, "hour").opens_at
        for _ in range(3):  # a wait may be cut in two: at each instant somebody looks again
            due_in_us = harness.store.due_in([QUEUE])
            assert due_in_us is not None
            if due_in_us == 0:
                break
            claim_nothing(harness)
            harness.clock.advance(us=due_in_us)
        assert harness.clock.now() == opens_at
        assert claim_ids(harness) == ["c"]

    @rule("T13", "F3")
    def test_a_throttled_job_holds_its_limit_and_uses_no_retry(self, harness: Harness) -> None:
        set_limit(harness, rate=100, per_us=SECOND, burst=5)
        enqueue_many(harness, "a", "b", rules=under(f"{STRIPE}/x"))
        enqueue_one(harness, "other", rules=under(f"{STRIPE}/y"))
        lease = claim_one(harness)
        assert throttled(harness, lease, 20).state is JobState.READY
        assert claim_ids(harness) == ["other"]
        assert harness.store.due_in([QUEUE]) == 20 * SECOND
        harness.clock.advance(us=20 * SECOND - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        again = claim(harness, 10)
        assert [(one.job.id, one.retries) for one in again] == [("a", 0)]

    @rule("T13")
    def test_a_limit_without_a_rate_can_be_held_too(self, harness: Harness) -> None:
        set_limit(harness, places=5)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE))
        first, second = claim(harness, 2)
        throttled(harness, first, 10)
        throttled(harness, second, 5)
        assert harness.store.due_in([QUEUE]) == 10 * SECOND
        assert limit_of(harness).opens_at == harness.clock.now() + 10 * SECOND
        harness.clock.advance(s=10)
        assert claim_ids(harness) == ["a", "b", "c"]

    @rule("T13", "L4")
    def test_a_late_report_holds_nothing(self, harness: Harness) -> None:
        set_limit(harness, places=5)
        enqueue_one(harness, rules=under(STRIPE))
        lease = claim_one(harness)
        let_expire(harness, lease)
        harness.store.release([ReleaseReport(lease.job.id, lease.token, None, "429", STRIPE, 30 * SECOND)])
        assert state_of(harness) is JobState.READY
        assert claim_ids(harness) == ["job"]

    @rule("T14")
    def test_a_changed_rate_holds_from_the_next_grant(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=86_400 * SECOND)
        enqueue_many(harness, *"abcdef", rules=under(STRIPE))
        assert claim_ids(harness) == ["a"]
        set_limit(harness, rate=10, per_us=SECOND, burst=2)
        assert harness.store.due_in([QUEUE]) == TENTH
        harness.clock.advance(us=TENTH)
        assert claim_ids(harness) == ["b"]
        set_limit(harness, rate=1, per_us=60 * SECOND)
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["c"]
        assert harness.store.due_in([QUEUE]) == 60 * SECOND

    @rule("T14", "T6")
    def test_code_may_change_a_rate_while_jobs_wait(self, harness: Harness) -> None:
        declare(harness, rate=1, per_us=3_600 * SECOND)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        assert claim_ids(harness) == ["a"]
        declare(harness, places=5)
        assert claim_ids(harness) == ["b"]

    @rule("T9", "T12")
    def test_limit_rate_lane_and_queue_limit_hold_together(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=SECOND)
        set_limit(harness, "places", places=2)
        set_limit(harness, f"queue:{QUEUE}", places=2)
        enqueue_many(harness, "l1", "l2", lane=LANE, rules=under(STRIPE, "places"))
        enqueue_many(harness, "p1", "p2", rules=under("places"))
        first, second = claim(harness, 10)
        assert ids([first, second]) == ["l1", "p1"]
        acked(harness, first)
        assert claim_ids(harness) == ["p2"]
        acked(harness, second)
        claim_nothing(harness)
        assert harness.store.due_in([QUEUE]) == SECOND
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["l2"]

    @rule("T9", "T12", "O3")
    def test_a_pause_keeps_lane_rate_and_place_as_they_are(self, harness: Harness) -> None:
        """What a paused queue does not grant is not charged, and its lane is in order afterwards."""
        set_limit(harness, places=1, rate=1, per_us=10 * SECOND)
        enqueue_many(harness, "l1", "l2", "l3", lane=LANE, rules=under(STRIPE))
        lease = claim_one(harness)
        pause(harness)
        acked(harness, lease)
        harness.clock.advance(s=60)
        claim_nothing(harness)
        assert counts(harness) == (0, 1)
        resume(harness)
        assert claim_ids(harness) == ["l2"]
        claim_nothing(harness)

    @rule("T10", "L8")
    def test_a_clock_that_jumps_forward_gives_a_burst_and_no_more(self, harness: Harness) -> None:
        """Of the hour that never was nothing is made up for; when the clock is set right, grants wait for it (T15)."""
        set_limit(harness, rate=1, per_us=10 * SECOND, burst=2)
        enqueue_many(harness, *"abcdefgh", rules=under(STRIPE))
        assert claim_ids(harness) == ["a", "b"]
        harness.clock.advance(s=3_600)
        taken = set(claim_ids(harness))
        assert len(taken) == 2
        claim_nothing(harness)
        harness.clock.advance(s=10)
        assert len(claim_ids(harness)) == 1
        harness.clock.advance(s=-3_600)
        claim_nothing(harness)

    @rule("T15", "L8")
    def test_a_clock_that_goes_back_gives_no_grants(self, harness: Harness) -> None:
        set_limit(harness, rate=1, per_us=10 * SECOND)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        harness.clock.advance(s=60)
        assert claim_ids(harness) == ["a"]
        harness.clock.advance(s=-30)
        claim_nothing(harness)
        assert harness.store.due_in([QUEUE]) == 40 * SECOND
        harness.clock.advance(s=40)
        assert claim_ids(harness) == ["b"]

    @rule("T10")
    def test_a_rate_outlives_its_jobs(self, harness: Harness) -> None:
        """Also when the store is closed and opened again meanwhile."""
        set_limit(harness, rate=1, per_us=10 * SECOND)
        enqueue_one(harness, "a", rules=under(STRIPE))
        acked(harness, claim_one(harness))
        harness.reopen()
        assert harness.store.enqueue([spec("b", rules=under(STRIPE))])
        claim_nothing(harness)
        assert harness.store.due_in([QUEUE]) == 10 * SECOND
        harness.clock.advance(s=10)
        assert claim_ids(harness) == ["b"]
