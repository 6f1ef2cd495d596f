"""N1 to N7: the jobs of one lane run one at a time, in order."""

from __future__ import annotations

from leasemill.kernel.commands import LaneHint
from leasemill.kernel.model import SECOND, JobState, OnFailure, Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    OTHER,
    QUEUE,
    acked,
    cancelled,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    enqueue_many,
    enqueue_one,
    expired,
    failed_for_good,
    job_of,
    lane_of,
    nacked,
    purge,
    redrive,
    released,
    spec,
    started,
    state_of,
)
from leasemill.testing.rules import rule

BLOCK = Policy(max_retries=0, max_expirations=1, on_failure=OnFailure.BLOCK)


class Lanes:
    @rule("N1")
    def test_one_job_of_a_lane_is_leased_at_a_time(self, harness: Harness) -> None:
        """000: a single unit is in flight for a domain."""
        enqueue_many(harness, "a1", "a2", "a3", lane="a")
        enqueue_many(harness, "b1", "b2", lane="b")
        enqueue_one(harness, "free")
        assert claim_ids(harness) == ["a1", "b1", "free"]
        claim_nothing(harness)
        assert [lane_of(harness, lane).waiting for lane in ("a", "b")] == [2, 1]

    @rule("N1")
    def test_the_same_lane_of_another_queue_is_another_lane(self, harness: Harness) -> None:
        enqueue_one(harness, "here", lane=LANE)
        enqueue_one(harness, "there", lane=LANE, queue="other")
        assert claim_ids(harness, 100, QUEUE, "other") == ["here", "there"]

    @rule("N2")
    def test_a_lanes_jobs_run_in_order_whatever_their_priority(self, harness: Harness) -> None:
        """000: first in, first out for each domain."""
        enqueue_one(harness, "first", lane=LANE, priority=0)
        enqueue_one(harness, "second", lane=LANE, priority=9)
        enqueue_one(harness, "third", lane=LANE, priority=5)
        ran = []
        for _ in range(3):
            lease = claim_one(harness)
            ran.append(lease.job.id)
            acked(harness, lease)
        assert ran == ["first", "second", "third"]

    @rule("N2", "E6")
    def test_the_jobs_of_one_batch_run_in_its_order_in_their_lane(self, harness: Harness) -> None:
        ids = ["third", "first", "second"]
        harness.store.enqueue([spec(job_id, lane=LANE) for job_id in ids])
        ran = []
        for _ in ids:
            lease = claim_one(harness)
            ran.append(lease.job.id)
            acked(harness, lease)
        assert ran == ids

    @rule("N2", "C2")
    def test_heads_compete_by_their_own_priority(self, harness: Harness) -> None:
        enqueue_one(harness, "low", lane="a")
        enqueue_one(harness, "high", lane="b", priority=5)
        enqueue_one(harness, "middle", priority=3)
        assert claim_ids(harness) == ["high", "middle", "low"]

    @rule("N2", "N3")
    def test_a_job_due_later_is_not_overtaken_in_its_lane(self, harness: Harness) -> None:
        enqueue_one(harness, "first", lane=LANE, delay_us=10 * SECOND)
        enqueue_one(harness, "second", lane=LANE)
        claim_nothing(harness)
        harness.clock.advance(s=10)
        assert claim_ids(harness) == ["first"]
        claim_nothing(harness)

    @rule("N3", "C4", "N6")
    def test_a_blocked_lane_does_not_stand_in_others_way(self, harness: Harness) -> None:
        for number in range(50):
            enqueue_one(harness, f"blocked-{number}", lane=LANE, priority=9)
        enqueue_one(harness, "free")
        assert claim_ids(harness, 2) == ["blocked-0", "free"]

    @rule("N3")
    def test_the_head_blocks_its_lane_while_it_waits_for_a_retry(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", lane=LANE)
        nacked(harness, claim_one(harness), delay_us=5 * SECOND)
        claim_nothing(harness)
        harness.clock.advance(s=5)
        assert claim_ids(harness) == ["first"]
        claim_nothing(harness)

    @rule("N3")
    def test_the_head_stays_the_head_after_expiry_and_release(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", lane=LANE)
        expired(harness, claim_one(harness))
        lease = claim_one(harness)
        assert lease.job.id == "first"
        released(harness, lease, delay_us=SECOND)
        claim_nothing(harness)
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["first"]

    @rule("N4", "N7")
    def test_when_the_head_ends_the_next_is_head(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", "third", lane=LANE)
        outcome = acked(harness, claim_one(harness))
        assert outcome.next_in_lane == LaneHint("second", None)
        view = lane_of(harness)
        assert view.head is not None
        assert (view.head.spec.id, view.waiting, view.is_blocked) == ("second", 1, False)
        failed = failed_for_good(harness, claim_one(harness))
        assert failed.next_in_lane == LaneHint("third", None)
        assert acked(harness, claim_one(harness)).next_in_lane is None

    @rule("N4")
    def test_the_lane_goes_on_after_a_failure_and_a_quarantine(self, harness: Harness) -> None:
        enqueue_one(harness, "failing", lane=LANE)
        enqueue_one(harness, "killing", lane=LANE, policy=Policy(max_expirations=1))
        enqueue_one(harness, "third", lane=LANE)
        failed_for_good(harness, claim_one(harness))
        lease = claim_one(harness)
        started(harness, lease)
        expired(harness, lease)
        assert state_of(harness, "killing") is JobState.DEAD
        assert claim_ids(harness) == ["third"]

    @rule("N4", "X5")
    def test_the_lane_goes_on_when_expiry_finishes_a_committed_head(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", lane=LANE)
        lease = claim_one(harness)
        committed(harness, lease)
        claim_nothing(harness)
        expired(harness, lease)
        assert claim_ids(harness) == ["second"]

    @rule("N5")
    def test_a_failed_head_that_blocks_keeps_its_lane(self, harness: Harness) -> None:
        enqueue_one(harness, "first", lane=LANE, policy=BLOCK)
        enqueue_one(harness, "second", lane=LANE)
        outcome = nacked(harness, claim_one(harness))
        assert (outcome.state, outcome.next_in_lane) == (JobState.FAILED, None)
        claim_nothing(harness)
        view = lane_of(harness)
        assert view.head is not None
        assert (view.head.spec.id, view.is_blocked, view.waiting) == ("first", True, 1)
        assert [one.lane for one in harness.store.lanes(QUEUE, blocked_only=True).lanes] == [LANE]

    @rule("N5")
    def test_a_quarantined_head_that_blocks_keeps_its_lane(self, harness: Harness) -> None:
        enqueue_one(harness, "first", lane=LANE, policy=BLOCK)
        enqueue_one(harness, "second", lane=LANE)
        lease = claim_one(harness)
        started(harness, lease)
        expired(harness, lease)
        assert state_of(harness, "first") is JobState.DEAD
        claim_nothing(harness)
        cancelled(harness, "first")
        assert claim_ids(harness) == ["second"]

    @rule("N5", "O2")
    def test_a_redriven_job_that_blocks_is_still_the_head(self, harness: Harness) -> None:
        self._block(harness)
        redrive(harness, "first")
        assert claim_ids(harness) == ["first"]
        claim_nothing(harness)

    @rule("N5", "O1")
    def test_cancelling_a_job_that_blocks_lets_its_lane_go_on(self, harness: Harness) -> None:
        self._block(harness)
        cancelled(harness, "first")
        assert claim_ids(harness) == ["second"]

    @rule("N5", "O5")
    def test_purging_a_job_that_blocks_lets_its_lane_go_on(self, harness: Harness) -> None:
        self._block(harness)
        purge(harness, "first")
        assert claim_ids(harness) == ["second"]

    @rule("N5")
    def test_a_job_without_a_lane_blocks_nothing(self, harness: Harness) -> None:
        enqueue_one(harness, "first", policy=BLOCK)
        enqueue_one(harness, "second")
        nacked(harness, claim_one(harness))
        assert claim_ids(harness) == ["second"]

    def _block(self, harness: Harness) -> None:
        enqueue_one(harness, "first", lane=LANE, policy=BLOCK)
        enqueue_many(harness, "second", "third", lane=LANE)
        nacked(harness, claim_one(harness))
        claim_nothing(harness)

    @rule("N6")
    def test_an_idle_lane_leaves_nothing_behind(self, harness: Harness) -> None:
        for number in range(20):
            enqueue_one(harness, f"job-{number}", lane=f"lane-{number}")
        for lease in claim(harness, 100):
            acked(harness, lease)
        assert harness.store.lanes(QUEUE).lanes == ()
        assert harness.store.lane(QUEUE, "lane-0") is None
        enqueue_one(harness, "again", lane="lane-0")
        assert claim_ids(harness) == ["again"]

    @rule("N7")
    def test_the_hint_is_the_next_that_is_still_waiting(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", "third", lane=LANE)
        lease = claim_one(harness)
        cancelled(harness, "second")
        assert lane_of(harness).waiting == 1
        assert acked(harness, lease).next_in_lane == LaneHint("third", None)
        assert claim_ids(harness) == ["third"]

    @rule("N7")
    def test_a_retry_and_a_job_without_a_lane_have_no_hint(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", lane=LANE)
        assert nacked(harness, claim_one(harness)).next_in_lane is None
        enqueue_many(harness, "third", "fourth", queue="free")
        assert acked(harness, claim_one(harness, queue="free")).next_in_lane is None

    @rule("O2", "N2")
    def test_a_redriven_job_goes_to_its_lanes_tail(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", "third", lane=LANE)
        failed_for_good(harness, claim_one(harness))
        redrive(harness, "first")
        ran = []
        for _ in range(3):
            lease = claim_one(harness)
            ran.append(lease.job.id)
            acked(harness, lease)
        assert ran == ["second", "third", "first"]

    @rule("O2", "O1", "N2")
    def test_a_waiting_job_cancelled_and_redriven_goes_to_the_tail_once(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", "third", lane=LANE)
        cancelled(harness, "second")
        redrive(harness, "second", include_cancelled=True)
        assert lane_of(harness).waiting == 2
        ran = []
        for _ in range(3):
            lease = claim_one(harness)
            ran.append(lease.job.id)
            acked(harness, lease)
        assert ran == ["first", "third", "second"]
        claim_nothing(harness)

    @rule("O1", "N4")
    def test_cancelling_the_head_lets_its_lane_go_on(self, harness: Harness) -> None:
        enqueue_many(harness, "first", "second", "third", lane=LANE)
        claim_one(harness)
        cancelled(harness, "first")
        lease = claim_one(harness, worker=OTHER)
        assert lease.job.id == "second"
        released(harness, lease)
        cancelled(harness, "second")
        assert claim_ids(harness) == ["third"]

    @rule("N2")
    def test_a_lane_that_emptied_starts_again(self, harness: Harness) -> None:
        enqueue_one(harness, "first", lane=LANE)
        acked(harness, claim_one(harness))
        enqueue_many(harness, "second", "third", lane=LANE)
        assert claim_ids(harness) == ["second"]
        assert job_of(harness, "third").state is JobState.READY
