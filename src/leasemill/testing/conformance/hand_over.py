"""C8: an ack with a claim is the one and then the other, so that the next job of a lane is granted as its head ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leasemill.kernel.commands import Ack, Acked, AckOutcome, AckReport, Claim, LaneHint, Lease
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState, LimitTerms, LimitUse, LossReason, Policy, Rules
from leasemill.testing.conformance.group_steps import counts, with_members
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.steps import (
    LANE,
    OPERATOR,
    OTHER,
    QUEUE,
    WHY,
    WORKER,
    acked,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    enqueue_many,
    enqueue_one,
    failed_for_good,
    job_of,
    lane_of,
    let_expire,
    new_token,
    only,
    pause,
    redrive,
    refused,
    released,
    set_policy,
    state_of,
)
from leasemill.testing.rules import rule


class Handed(NamedTuple):
    outcomes: list[AckOutcome]
    leases: list[Lease]

    @property
    def ids(self) -> list[str]:
        return [lease.job.id for lease in self.leases]


def hand_over(
    harness: Harness,
    *leases: Lease,
    limit: int = 10,
    queues: Sequence[str] = (QUEUE,),
    result: bytes | None = None,
    request_id: str | None = None,
    tokens: Sequence[str] | None = None,
    kinds: Mapping[str, Policy] | None = None,
) -> Handed:
    """Ack these, and claim."""
    acks = Ack([AckReport(lease.job.id, lease.token, result) for lease in leases])
    drawn = tokens or [new_token() for _ in range(limit)]
    claims = Claim(WORKER, queues, limit, drawn, request_id or new_token(), kinds or {})
    outcomes, granted = asyncio.run(harness.store.ack_and_claim(acks, claims))
    assert granted is not None
    return Handed(outcomes, granted)


def staying_open(harness: Harness) -> Harness:
    """A process that claimed a job itself reports on it in another way than one that did not."""
    return StayingOpen(harness)


class Handing:
    @rule("C8", "N4", "N7")
    def test_the_next_job_of_a_lane_is_granted_with_the_end_of_its_head(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", "a3", lane=LANE)
        kept = staying_open(harness)
        lease, fence = claim_one(kept), 0
        for following in ("a2", "a3"):
            before = lease
            outcomes, leases = hand_over(kept, before, result=b'"done"')
            assert outcomes == [Acked(before.job.id, LaneHint(following, None))]
            lease = only(leases)
            assert (lease.job.id, lease.attempt, lease.worker) == (following, 1, WORKER)
            assert lease.fence > before.fence > fence
            fence = before.fence
            assert state_of(kept, before.job.id) is JobState.SUCCEEDED
            assert job_of(kept, before.job.id).result == b'"done"'
            assert state_of(kept, following) is JobState.LEASED
            claim_nothing(kept)
        outcomes, leases = hand_over(kept, lease)
        assert (outcomes, leases) == ([Acked("a3")], [])
        assert kept.store.lane(QUEUE, LANE) is None
        enqueue_one(harness, "a4", lane=LANE)
        assert claim_ids(harness) == ["a4"]

    @rule("C8", "N1", "C2", "I3")
    def test_heads_of_several_lanes_are_granted_in_the_order_of_any_claim(self, harness: Harness) -> None:
        for number in range(3):
            enqueue_one(harness, f"a{number}", lane="a", priority=number)
            enqueue_one(harness, f"b{number}", lane="b", priority=2 - number)
            enqueue_one(harness, f"c{number}", lane="c")
        kept = staying_open(harness)
        first = claim(kept, 10)
        assert [lease.job.id for lease in first] == ["b0", "a0", "c0"]
        _, second = hand_over(kept, *first)
        assert [lease.job.id for lease in second] == ["a1", "b1", "c1"]
        assert sorted(lease.fence for lease in second) == [lease.fence for lease in second]
        assert hand_over(kept, *second).ids == ["a2", "b2", "c2"]

    @rule("C8", "C2")
    def test_another_job_that_comes_first_is_granted_first(self, harness: Harness) -> None:
        """A busy lane starves no other."""
        enqueue_many(harness, "a1", "a2", "a3", lane=LANE)
        kept = staying_open(harness)
        lease = claim_one(kept)
        kept.clock.advance(s=1)
        enqueue_one(kept, "urgent", priority=9)
        enqueue_one(kept, "later")
        outcomes, leases = hand_over(kept, lease, limit=1)
        assert outcomes == [Acked("a1", LaneHint("a2", None))]
        assert [one.job.id for one in leases] == ["urgent"]
        assert hand_over(kept, only(leases), limit=2).ids == ["a2", "later"]

    @rule("C8", "C4")
    def test_no_more_are_granted_than_were_asked_for(self, harness: Harness) -> None:
        for lane in "abc":
            enqueue_many(harness, f"{lane}1", f"{lane}2", lane=lane)
        kept = staying_open(harness)
        first = claim(kept, 10)
        spare = [new_token() for _ in range(5)]
        assert hand_over(kept, *first, limit=2, tokens=spare).ids == ["a2", "b2"]
        assert claim_ids(harness) == ["c2"]

    @rule("C5", "C8")
    def test_a_claim_that_is_repeated_with_other_acks_returns_its_leases_and_no_others(self, harness: Harness) -> None:
        enqueue_many(harness, "b1", "b2", lane=LANE)
        enqueue_one(harness, "a")
        kept = staying_open(harness)
        lease, token = claim_one(kept), new_token()
        granted = kept.store.run(Claim(WORKER, (QUEUE,), 1, [token], "request"))
        assert [one.job.id for one in granted] == ["a"]
        outcomes, leases = hand_over(kept, lease, request_id="request", tokens=[token], limit=1)
        assert outcomes == [Acked("b1", LaneHint("b2", None))]
        assert leases == granted
        assert claim_ids(harness) == ["b2"]

    @rule("C8", "N3", "C1")
    def test_a_next_job_that_is_not_due_waits_as_head(self, harness: Harness) -> None:
        enqueue_one(harness, "a1", lane=LANE)
        enqueue_one(harness, "a2", lane=LANE, delay_us=60 * SECOND)
        kept = staying_open(harness)
        outcomes, leases = hand_over(kept, claim_one(kept))
        assert (outcomes, leases) == ([Acked("a1", LaneHint("a2", None))], [])
        kept.clock.advance(s=60)
        assert claim_ids(harness) == ["a2"]

    @rule("C8", "O3", "C6")
    def test_a_paused_queue_hands_nothing_over(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane=LANE)
        kept = staying_open(harness)
        lease = claim_one(kept)
        pause(kept)
        outcomes, leases = hand_over(kept, lease)
        assert (outcomes, leases) == ([Acked("a1", LaneHint("a2", None))], [])
        head = lane_of(harness).head
        assert head is not None
        assert (head.spec.id, head.state) == ("a2", JobState.READY)

    @rule("C8", "C6")
    def test_a_next_job_in_a_queue_that_is_not_asked_for_is_left_to_others(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", "a3", lane=LANE)
        enqueue_one(harness, "elsewhere", queue="other")
        kept = staying_open(harness)
        assert hand_over(kept, claim_one(kept), queues=["other"]).ids == ["elsewhere"]
        assert hand_over(kept, claim_one(kept), queues=["other"]).ids == []
        assert claim_ids(harness) == ["a3"]

    @rule("C8", "T2", "T9")
    def test_a_next_job_without_a_place_is_not_granted(self, harness: Harness) -> None:
        rules = Rules(limits=(LimitUse("stripe"),))
        harness.store.set_limit("stripe", LimitTerms(places=1), by=OPERATOR, reason=WHY)
        enqueue_one(harness, "held", rules=rules)
        enqueue_one(harness, "a1", lane=LANE)
        enqueue_one(harness, "a2", lane=LANE, rules=rules)
        kept = staying_open(harness)
        held, head = claim(kept, 10)
        assert hand_over(kept, head).ids == []
        assert hand_over(kept, held).ids == ["a2"]

    @rule("C8", "T1")
    def test_a_queues_limit_holds_for_what_is_handed_over(self, harness: Harness) -> None:
        for lane in "ab":
            enqueue_many(harness, f"{lane}1", f"{lane}2", lane=lane)
        kept = staying_open(harness)
        first, second = claim(kept, 10)
        kept.store.set_limit(QUEUE_LIMIT + QUEUE, LimitTerms(places=1), by=OPERATOR, reason=WHY)
        assert hand_over(kept, first).ids == []
        assert hand_over(kept, second).ids == ["a2"]

    @rule("C8", "L2", "L4")
    def test_a_refused_report_ends_nothing_and_the_others_count(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane="a")
        enqueue_many(harness, "b1", "b2", lane="b")
        kept = staying_open(harness)
        lost, lease = claim(kept, 10)
        released(kept, lost)
        again = claim_one(kept, worker=OTHER)
        (first, second), leases = hand_over(kept, lost, lease)
        refused(first, LossReason.ENDED)
        assert second == Acked("b1", LaneHint("b2", None))
        assert [one.job.id for one in leases] == ["b2"]
        assert state_of(kept, "a1") is JobState.LEASED
        acked(kept, again)

    @rule("C8", "L3")
    def test_an_expired_lease_hands_nothing_over(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane=LANE)
        kept = staying_open(harness)
        lease = claim_one(kept)
        let_expire(kept, lease)
        (outcome,), leases = hand_over(kept, lease)
        refused(outcome, LossReason.EXPIRED)
        assert [(one.job.id, one.attempt) for one in leases] == [("a1", 2)]

    @rule("C8", "L6")
    def test_a_job_that_has_committed_hands_over_whatever_the_time(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane=LANE)
        kept = staying_open(harness)
        lease = claim_one(kept)
        committed(kept, lease, result=b"1")
        outcomes, leases = hand_over(kept, lease, result=b"2")
        assert outcomes == [Acked("a1", LaneHint("a2", None))]
        assert [one.job.id for one in leases] == ["a2"]
        assert job_of(kept, "a1").result == b"1"

    @rule("C8", "C5", "L6")
    def test_a_repeat_after_a_lost_reply_gives_the_same_answers(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", "a3", lane=LANE)
        kept = staying_open(harness)
        lease, token = claim_one(kept), new_token()
        first = hand_over(kept, lease, request_id="request", tokens=[token], limit=1)
        again = hand_over(kept, lease, request_id="request", tokens=[token], limit=1)
        assert first.outcomes == [Acked("a1", LaneHint("a2", None))]
        assert [outcome.job_id for outcome in again.outcomes] == ["a1"]
        assert again.leases == first.leases
        assert [execution.token for execution in job_of(kept, "a2").executions] == [token]
        claim_nothing(kept)

    @rule("C8", "I2")
    def test_a_job_is_not_handed_over_under_a_token_it_has_had(self, harness: Harness) -> None:
        enqueue_one(harness, "a1", lane=LANE)
        kept = staying_open(harness)
        spent = claim_one(kept)
        failed_for_good(kept, spent)
        enqueue_one(kept, "a2", lane=LANE)
        lease = claim_one(kept)
        redrive(kept, "a1")
        outcomes, leases = hand_over(kept, lease, tokens=[spent.token], limit=1)
        assert (outcomes, leases) == ([Acked("a2", LaneHint("a1", None))], [])
        again = claim_one(kept)
        assert (again.job.id, again.attempt) == ("a1", 2)

    @rule("C8", "I1", "O2")
    def test_a_redriven_job_is_handed_over_with_its_history(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane=LANE)
        kept = staying_open(harness)
        failed_for_good(kept, claim_one(kept))
        redrive(kept, "a1")
        lease = only(hand_over(kept, claim_one(kept)).leases)
        assert (lease.job.id, lease.attempt, lease.retries) == ("a1", 2, 0)
        acked(harness, lease)
        assert len(job_of(harness, "a1").executions) == 2

    @rule("C8", "I5")
    def test_the_terms_of_what_is_handed_over_are_settled_as_in_any_claim(self, harness: Harness) -> None:
        own = Policy(lease_ttl_us=7 * SECOND)
        for job_id, policy, kind in (
            ("a1", None, "kind"),
            ("a2", own, "slow"),
            ("a3", None, "slow"),
            ("a4", None, "other"),
        ):
            enqueue_one(harness, job_id, lane=LANE, policy=policy, kind=kind)
        kept = staying_open(harness)
        kinds = {"slow": Policy(lease_ttl_us=70 * SECOND, max_retries=9)}
        lease = claim_one(kept)
        found = []
        for _ in range(3):
            lease = only(hand_over(kept, lease, kinds=kinds).leases)
            found.append((lease.terms.lease_ttl_us // SECOND, lease.terms.max_retries))
            assert lease.expires_at - lease.leased_at == lease.terms.lease_ttl_us
            if lease.job.id == "a3":
                set_policy(kept, Policy(lease_ttl_us=11 * SECOND))
        assert found == [(7, 9), (70, 9), (11, 3)]

    @rule("C8", "N4")
    def test_jobs_without_lanes_may_end_with_them(self, harness: Harness) -> None:
        enqueue_many(harness, "a1", "a2", lane=LANE)
        enqueue_one(harness, "free")
        kept = staying_open(harness)
        both = claim(kept, 10)
        outcomes, leases = hand_over(kept, *both)
        assert outcomes == [Acked("a1", LaneHint("a2", None)), Acked("free")]
        assert [one.job.id for one in leases] == ["a2"]

    @rule("C8", "B1")
    def test_members_of_groups_are_counted_and_hand_over(self, harness: Harness) -> None:
        with_members(harness, "a1", "a2", lane=LANE)
        kept = staying_open(harness)
        lease = only(hand_over(kept, claim_one(kept)).leases)
        assert lease.job.id == "a2"
        assert counts(harness)[1] == 1

    @rule("C8", "L7")
    def test_a_claim_that_would_be_granted_nothing_looks_for_expired_leases(self, harness: Harness) -> None:
        enqueue_one(harness, "left", policy=Policy(lease_ttl_us=5 * SECOND))
        kept = staying_open(harness)
        claim_one(kept, worker=OTHER)
        enqueue_one(kept, "last", lane=LANE)
        lease = claim_one(kept)
        kept.clock.advance(s=6)
        assert hand_over(kept, lease).ids == ["left"]
