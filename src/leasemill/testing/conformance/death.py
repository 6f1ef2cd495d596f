"""L10: a lease whose holder is proved to have ended does not wait for its time."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import DeathReport, Died
from leasemill.kernel.model import SECOND, AbortReason, ExecutionStatus, JobState, LossReason, OnFailure, Policy, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    CAUSE,
    LANE,
    REPORTS,
    WORKER,
    acked,
    claim_ids,
    claim_one,
    committed,
    death,
    died,
    enqueue_and_claim,
    enqueue_many,
    expired,
    extended,
    job_of,
    last_execution,
    let_expire,
    only,
    refused,
    started,
    state_of,
)
from leasemill.testing.rules import rule


class Dying:
    @rule("L10")
    def test_the_job_of_a_dead_holder_is_claimable_at_once(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        assert died(harness, lease) == Died("job", JobState.READY)
        again = claim_one(harness)
        assert (again.attempt, again.retries) == (2, 0)
        assert again.fence > lease.fence

    @rule("L10", "I8")
    def test_the_proof_is_kept_with_the_execution(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=SECOND)
        died(harness, lease)
        execution = last_execution(harness)
        assert (execution.status, execution.reason) == (ExecutionStatus.ABORTED, AbortReason.DIED)
        assert (execution.ended_by, execution.error) == (Verb.DEATH, CAUSE)
        assert execution.finished_at == lease.leased_at + SECOND
        assert job_of(harness).refusals == ()

    @rule("L10", "L2")
    @pytest.mark.parametrize("verb", sorted(REPORTS))
    def test_a_report_of_the_dead_is_refused(self, harness: Harness, verb: Verb) -> None:
        """One that was on its way: the fence protects, not the proof."""
        lease = enqueue_and_claim(harness)
        died(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.DIED)
        claim_one(harness)
        refused(REPORTS[verb](harness, lease), LossReason.DIED)
        assert state_of(harness) is JobState.LEASED

    @rule("L10", "L6")
    def test_a_repeated_proof_changes_nothing(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        died(harness, lease)
        assert died(harness, lease) == Died("job", JobState.READY, is_repeat=True)
        following = claim_one(harness)
        before = job_of(harness)
        assert died(harness, lease) == Died("job", JobState.READY, is_repeat=True)
        assert job_of(harness) == before
        acked(harness, following)

    @rule("L10")
    def test_a_proof_about_another_lease_does_nothing(self, harness: Harness) -> None:
        """The fence stays what protects: a proof is about one token, whatever became of the job since."""
        lease = enqueue_and_claim(harness)
        expired(harness, lease)
        following = claim_one(harness)
        before = job_of(harness)
        refused(death(harness, lease), LossReason.SUPERSEDED)
        refused(only(harness.store.death([DeathReport("job", "forged", CAUSE)])), LossReason.UNKNOWN)
        refused(only(harness.store.death([DeathReport("nobody", "forged", CAUSE)])), LossReason.UNKNOWN)
        assert job_of(harness) == before
        extended(harness, following)

    @rule("L10")
    def test_a_proof_after_the_end_does_nothing(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        before = job_of(harness)
        refused(death(harness, lease), LossReason.ENDED)
        assert job_of(harness) == before

    @rule("L10")
    def test_a_lease_whose_time_is_up_ends_once(self, harness: Harness) -> None:
        """By the proof, or by time, where a store has recorded that as it was opened (L7)."""
        lease = enqueue_and_claim(harness)
        let_expire(harness, lease)
        outcome = death(harness, lease)
        reason = AbortReason.DIED if isinstance(outcome, Died) else AbortReason.EXPIRED
        assert last_execution(harness).reason is reason
        assert claim_one(harness).attempt == 2

    @rule("L10", "X5")
    def test_a_committed_job_of_a_dead_holder_has_succeeded(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"7")
        assert died(harness, lease) == Died("job", JobState.SUCCEEDED)
        assert died(harness, lease) == Died("job", JobState.SUCCEEDED, is_repeat=True)
        execution = last_execution(harness)
        assert (execution.status, execution.ended_by) == (ExecutionStatus.DONE, Verb.DEATH)
        assert job_of(harness).result == b"7"

    @rule("L10", "F3", "F4")
    def test_deaths_of_started_runs_are_counted_as_expirations(self, harness: Harness) -> None:
        """A job that kills its worker ends in quarantine, without having used a retry."""
        lease = enqueue_and_claim(harness, policy=Policy(max_expirations=3, max_retries=0))
        died(harness, lease)
        assert (job_of(harness).expirations, job_of(harness).retries) == (0, 0)
        for expirations in (1, 2):
            lease = claim_one(harness)
            started(harness, lease)
            died(harness, lease)
            assert (job_of(harness).expirations, job_of(harness).retries) == (expirations, 0)
        lease = claim_one(harness)
        started(harness, lease)
        assert died(harness, lease) == Died("job", JobState.DEAD)
        assert died(harness, lease) == Died("job", JobState.DEAD, is_repeat=True)
        assert last_execution(harness).is_final

    @rule("L10", "N5")
    def test_a_quarantined_job_blocks_its_lane_as_its_policy_says(self, harness: Harness) -> None:
        policy = Policy(max_expirations=1, on_failure=OnFailure.BLOCK)
        lease = enqueue_and_claim(harness, lane=LANE, policy=policy)
        enqueue_many(harness, "behind", lane=LANE)
        started(harness, lease)
        died(harness, lease)
        assert claim_ids(harness) == []

    @rule("L10", "C3")
    def test_a_job_keeps_its_place(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, lane=LANE)
        enqueue_many(harness, "second", lane=LANE)
        died(harness, lease)
        assert claim_ids(harness) == ["job"]

    @rule("L10", "E6")
    def test_proofs_in_one_batch_have_an_outcome_each(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        leases = [claim_one(harness) for _ in range(3)]
        acked(harness, leases[1])
        reports = [DeathReport(lease.job.id, lease.token, CAUSE) for lease in (*leases, leases[0])]
        first, second, third, repeat = harness.store.death(reports)
        assert (first, third) == (Died("a", JobState.READY), Died("c", JobState.READY))
        refused(second, LossReason.ENDED)
        assert repeat == Died("a", JobState.READY, is_repeat=True)
        assert claim_ids(harness) == ["a", "c"]

    @rule("I4")
    @pytest.mark.parametrize("cause", ["a\0b", "x" * 100_001, "\ud800"], ids=["NUL", "too long", "not a text"])
    def test_a_malformed_cause_is_refused(self, harness: Harness, cause: str) -> None:
        lease = enqueue_and_claim(harness)
        with pytest.raises(Invalid):
            death(harness, lease, cause)
        assert state_of(harness) is JobState.LEASED

    @rule("L10", "O6")
    def test_the_leases_of_a_worker_are_listed(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c", "d")
        first, second = claim_one(harness), claim_one(harness, worker="another")
        third, fourth = claim_one(harness), claim_one(harness)
        acked(harness, fourth)
        listed = harness.store.leases(worker=WORKER)
        assert [(one.job_id, one.token) for one in listed] == [("a", first.token), ("c", third.token)]
        assert [one.job_id for one in harness.store.leases()] == ["a", "b", "c"]
        assert [one.job_id for one in harness.store.leases(limit=1, after=first.fence)] == ["b"]
        started(harness, second)
        (view,) = harness.store.leases(worker="another")
        assert (view.queue, view.kind, view.attempt, view.fence) == (second.job.queue, second.job.kind, 1, second.fence)
        assert (view.leased_at, view.expires_at) == (second.leased_at, second.expires_at)
        assert view.started_at is not None
