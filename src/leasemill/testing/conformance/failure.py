"""F: what is tried again, when, how often, and what happens then."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import JobFilter, Lease, Nacked
from leasemill.kernel.model import SECOND, AbortReason, JobState, OnFailure, Policy, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LEASE_US,
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    cancelled,
    claim_ids,
    claim_nothing,
    claim_one,
    enqueue_and_claim,
    enqueue_one,
    every_job,
    everything,
    expired,
    failed_for_good,
    job_of,
    last_execution,
    nack,
    nacked,
    purge,
    released,
    set_policy,
    spec,
    started,
    state_of,
)
from leasemill.testing.rules import rule

OUT_OF_BOUNDS = {
    "max_retries below": Policy(max_retries=-1),
    "max_retries above": Policy(max_retries=1_001),
    "lease below": Policy(lease_ttl_us=999),
    "lease above": Policy(lease_ttl_us=2**62),
    "timeout below": Policy(timeout_us=0),
    "timeout above": Policy(timeout_us=2**62),
    "max_expirations below": Policy(max_expirations=0),
    "max_expirations above": Policy(max_expirations=1_001),
    "base below": Policy(backoff_base_us=-1),
    "base above": Policy(backoff_base_us=2**62),
    "cap below": Policy(backoff_cap_us=-1),
    "cap above": Policy(backoff_cap_us=2**62),
    "base above cap": Policy(backoff_base_us=2, backoff_cap_us=1),
}


class Failing:
    @rule("F1")
    def test_a_failed_job_is_retried_after_its_back_off(self, harness: Harness) -> None:
        """001: InFlight to Ready by Nack; not claimable until retry_at has passed."""
        lease = enqueue_and_claim(harness)
        outcome = nack(harness, lease, "broke", jitter=0.5)
        retry_at = harness.clock.now() + SECOND // 4
        assert outcome == Nacked("job", JobState.READY, 1, retry_at)
        assert (job_of(harness).available_at, job_of(harness).retries) == (retry_at, 1)
        execution = last_execution(harness)
        assert (execution.error, execution.reason) == ("broke", AbortReason.FAILED)
        assert (execution.ended_by, execution.retry_at, execution.is_final) == (Verb.NACK, retry_at, False)
        harness.clock.advance(us=SECOND // 4 - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        assert claim_one(harness).retries == 1

    @rule("F1")
    def test_the_back_off_doubles_up_to_its_cap(self, harness: Harness) -> None:
        """001: delay = random(0, min(base * 2^attempt, max)); base 0.5 s, cap 30 s."""
        enqueue_one(harness, policy=Policy(max_retries=9))
        delays = []
        for _ in range(9):
            available_at = nacked(harness, claim_one(harness), jitter=0.5).available_at
            assert available_at is not None
            delays.append(2 * (available_at - harness.clock.now()) / SECOND)
            harness.clock.advance(us=available_at - harness.clock.now())
        assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]

    @rule("F1")
    def test_the_back_off_is_drawn_between_nothing_and_its_ceiling(self, harness: Harness) -> None:
        lowest = nacked(harness, enqueue_and_claim(harness, "a"), jitter=0.0)
        highest = nacked(harness, enqueue_and_claim(harness, "b", priority=1), jitter=0.999_999_999)
        now = harness.clock.now()
        assert lowest.available_at == now
        assert highest.available_at == now + SECOND // 2 - 1

    @rule("F1", "I5")
    def test_the_back_off_follows_the_jobs_policy(self, harness: Harness) -> None:
        policy = Policy(backoff_base_us=8 * SECOND, backoff_cap_us=10 * SECOND)
        lease = enqueue_and_claim(harness, policy=policy)
        assert nacked(harness, lease, jitter=0.5).available_at == harness.clock.now() + 4 * SECOND
        harness.clock.advance(s=4)
        assert nacked(harness, claim_one(harness), jitter=0.5).available_at == harness.clock.now() + 5 * SECOND

    @rule("F2")
    def test_three_retries_are_four_attempts(self, harness: Harness) -> None:
        """001: the initial attempt and 3 retries, then Failed."""
        enqueue_one(harness)
        outcomes = [nacked(harness, claim_one(harness)) for _ in range(4)]
        assert [(one.state, one.retries) for one in outcomes] == [
            (JobState.READY, 1),
            (JobState.READY, 2),
            (JobState.READY, 3),
            (JobState.FAILED, 3),
        ]
        assert (job_of(harness).attempt, job_of(harness).retries) == (4, 3)
        assert last_execution(harness).is_final
        harness.clock.advance(s=1_000_000)
        claim_nothing(harness)

    @rule("F2")
    def test_without_retries_the_first_failure_is_the_last(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, policy=Policy(max_retries=0))
        assert nack(harness, lease) == Nacked("job", JobState.FAILED, 0)

    @rule("F2", "F5")
    def test_a_named_delay_is_still_a_retry_and_bounded_like_one(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_retries=1))
        first = nacked(harness, claim_one(harness), delay_us=100 * SECOND)
        assert (first.state, first.retries) == (JobState.READY, 1)
        assert first.available_at == harness.clock.now() + 100 * SECOND
        harness.clock.advance(s=100)
        assert nacked(harness, claim_one(harness), delay_us=SECOND).state is JobState.FAILED

    @rule("F3")
    def test_expiry_and_release_use_no_retry(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_retries=1))
        for _ in range(4):
            released(harness, claim_one(harness))
            expired(harness, claim_one(harness))
        assert (job_of(harness).retries, job_of(harness).expirations) == (0, 0)
        assert nacked(harness, claim_one(harness)).state is JobState.READY
        assert nacked(harness, claim_one(harness)).state is JobState.FAILED

    @rule("F3", "I8")
    def test_the_reason_of_a_release_is_kept_with_its_execution(self, harness: Harness) -> None:
        enqueue_one(harness)
        released(harness, claim_one(harness), error="no handler for kind 'kind'")
        released(harness, claim_one(harness), delay_us=SECOND, error="another ✓")
        harness.clock.advance(s=1)
        released(harness, claim_one(harness))
        ends = [(one.reason, one.error, one.started_at) for one in job_of(harness).executions]
        assert ends == [
            (AbortReason.RELEASED, "no handler for kind 'kind'", None),
            (AbortReason.RELEASED, "another ✓", None),
            (AbortReason.RELEASED, None, None),
        ]
        assert (job_of(harness).state, job_of(harness).retries) == (JobState.READY, 0)

    @rule("F4")
    def test_a_job_that_kills_its_workers_is_quarantined(self, harness: Harness) -> None:
        enqueue_one(harness)
        states = []
        for _ in range(5):
            lease = claim_one(harness)
            started(harness, lease)
            states.append(expired(harness, lease).state)
        assert states == [JobState.READY] * 4 + [JobState.DEAD]
        job = job_of(harness)
        assert (job.state, job.expirations, job.retries) == (JobState.DEAD, 5, 0)
        assert (job.executions[-1].reason, job.executions[-1].is_final) == (AbortReason.EXPIRED, True)
        claim_nothing(harness)

    @rule("F4", "F3")
    def test_expirations_before_a_start_are_not_counted(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_expirations=1))
        for _ in range(3):
            assert expired(harness, claim_one(harness)).state is JobState.READY
        lease = claim_one(harness)
        assert lease.expirations == 0
        started(harness, lease)
        assert expired(harness, lease).state is JobState.DEAD

    @rule("F4", "L3")
    def test_a_late_report_is_also_the_expiration_that_quarantines(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, policy=Policy(max_expirations=1))
        started(harness, lease)
        harness.clock.advance(us=LEASE_US)
        nack(harness, lease)
        assert (state_of(harness), job_of(harness).expirations) == (JobState.DEAD, 1)

    @rule("F5")
    def test_a_handler_can_fail_for_good(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        assert nack(harness, lease, "never", is_permanent=True, delay_us=5) == Nacked("job", JobState.FAILED, 0)
        assert last_execution(harness).error == "never"
        assert job_of(harness).retries == 0

    @rule("F6")
    @pytest.mark.parametrize("name", OUT_OF_BOUNDS)
    def test_a_policy_out_of_bounds_is_refused_wherever_it_is_given(self, harness: Harness, name: str) -> None:
        policy = OUT_OF_BOUNDS[name]
        before = everything(harness)
        with pytest.raises(Invalid):
            harness.store.enqueue([spec(policy=policy)])
        with pytest.raises(Invalid):
            set_policy(harness, policy)
        with pytest.raises(Invalid):
            harness.store.claim("worker", [QUEUE], 1, kinds={"kind": policy})
        assert everything(harness) == before

    @rule("F6")
    def test_the_bounds_themselves_are_taken(self, harness: Harness) -> None:
        day = 24 * 3_600 * SECOND
        least = Policy(0, 1_000, 1, 1, 0, 0, OnFailure.CONTINUE)
        most = Policy(1_000, 3_660 * day, 3_660 * day, 1_000, 3_660 * day, 3_660 * day, OnFailure.BLOCK)
        enqueue_one(harness, "least", policy=least)
        enqueue_one(harness, "most", policy=most)
        assert [job.spec.policy for job in every_job(harness)] == [least, most]
        assert claim_ids(harness) == ["least", "most"]

    @rule("F7")
    def test_failed_dead_and_cancelled_jobs_stay_with_their_history(self, harness: Harness) -> None:
        """001: failed jobs require manual intervention."""
        failed_for_good(harness, enqueue_and_claim(harness, "failed"), "broke")
        dead = enqueue_and_claim(harness, "dead", policy=Policy(max_expirations=1))
        started(harness, dead)
        expired(harness, dead)
        enqueue_and_claim(harness, "cancelled")
        cancelled(harness, "cancelled")
        acked(harness, enqueue_and_claim(harness, "succeeded"))
        harness.clock.advance(s=1_000_000_000)
        assert harness.store.prune(harness.clock.now(), keep=0) == 1
        harness.store.expire()
        assert [(job.spec.id, job.state, len(job.executions)) for job in every_job(harness)] == [
            ("failed", JobState.FAILED, 1),
            ("dead", JobState.DEAD, 1),
            ("cancelled", JobState.CANCELLED, 1),
        ]
        assert last_execution(harness, "failed").error == "broke"
        purge(harness, "failed")
        assert harness.store.redrive(JobFilter(), by=OPERATOR, reason=WHY).job_ids == ("dead",)

    @rule("F2", "F4")
    def test_retries_and_expirations_are_counted_apart(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_retries=1, max_expirations=2))

        def run_and_die() -> Lease:
            lease = claim_one(harness)
            started(harness, lease)
            expired(harness, lease)
            return lease

        run_and_die()
        assert nacked(harness, claim_one(harness)).state is JobState.READY
        job = job_of(harness)
        assert (job.retries, job.expirations) == (1, 1)
        run_and_die()
        assert state_of(harness) is JobState.DEAD
