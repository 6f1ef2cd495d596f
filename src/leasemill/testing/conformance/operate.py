"""O: what operators do, and what retention forgets."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import (
    AlreadySucceeded,
    Cancelled,
    GetPolicies,
    JobFilter,
    Missing,
    Operated,
)
from leasemill.kernel.model import SECOND, Cancellation, JobState, LossReason, Policy, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.states import job_in
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    cancel,
    cancelled,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    every_job,
    everything,
    expired,
    extend,
    failed_for_good,
    job_of,
    nacked,
    pause,
    purge,
    redrive,
    refused,
    resume,
    set_policy,
    started,
    state_of,
)
from leasemill.testing.rules import rule


class Operating:
    @rule("O1")
    @pytest.mark.parametrize("state", ["ready", "retrying", "leased", "started", "failed", "quarantined"])
    def test_a_cancelled_job_says_so_and_is_never_claimed(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        before = job_of(harness)
        harness.clock.advance(s=1)
        assert cancel(harness) == Cancelled("job", JobState.CANCELLED)
        after = job_of(harness)
        assert (after.state, after.updated_at) == (JobState.CANCELLED, harness.clock.now())
        assert (after.retries, after.attempt) == (before.retries, before.attempt)
        harness.clock.advance(us=10 * LEASE_US)
        claim_nothing(harness)
        assert cancel(harness) == Cancelled("job", JobState.CANCELLED, is_repeat=True)

    @rule("O1")
    def test_the_holder_learns_of_the_cancel_at_its_next_report(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        cancelled(harness)
        lost = refused(extend(harness, lease), LossReason.CANCELLED)
        assert (lost.attempt, lost.current_attempt) == (1, 1)

    @rule("O1")
    def test_cancel_answers_for_each_job(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness, "done"))
        committed(harness, enqueue_and_claim(harness, "committed"))
        enqueue_one(harness, "ready")
        ids = ["done", "nowhere", "ready", "committed", "ready"]
        assert harness.store.cancel(ids, by=OPERATOR, reason=WHY) == [
            AlreadySucceeded("done"),
            Missing("nowhere"),
            Cancelled("ready", JobState.CANCELLED),
            Cancelled("committed", JobState.SUCCEEDED),
            Cancelled("ready", JobState.CANCELLED, is_repeat=True),
        ]

    @rule("O2")
    @pytest.mark.parametrize("state", ["failed", "cancelled", "cancelled in flight", "quarantined"])
    def test_a_redriven_job_is_ready_and_due_now(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        before = job_of(harness)
        harness.clock.advance(s=1)
        assert redrive(harness, "job", include_cancelled="cancelled" in state) == Operated(("job",), None)
        after = job_of(harness)
        assert (after.state, after.available_at) == (JobState.READY, harness.clock.now())
        assert (after.retries, after.expirations) == (0, 0)
        assert (after.attempt, after.executions) == (before.attempt, before.executions)
        assert claim_one(harness).attempt == before.attempt + 1

    @rule("O2")
    @pytest.mark.parametrize("state", ["cancelled", "cancelled in flight"])
    def test_a_cancelled_job_is_redriven_only_when_the_call_says_so(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        failed_for_good(harness, enqueue_and_claim(harness, "failed"))
        before = job_of(harness)
        assert redrive(harness, "job", "failed").job_ids == ("failed",)
        assert harness.store.redrive(JobFilter(queue=QUEUE), by=OPERATOR, reason=WHY).job_ids == ()
        named = JobFilter(queue=QUEUE, states=frozenset({JobState.CANCELLED}))
        assert harness.store.redrive(named, by=OPERATOR, reason=WHY).job_ids == ()
        with pytest.raises(Invalid, match="by id only"):
            harness.store.redrive(named, by=OPERATOR, reason=WHY, include_cancelled=True)
        assert job_of(harness) == before

    @rule("O1", "O2", "I8")
    @pytest.mark.parametrize("state", ["cancelled", "cancelled in flight"])
    def test_who_cancelled_a_job_is_kept_when_it_is_redriven(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        cancellation = Cancellation(harness.clock.now(), OPERATOR, WHY)
        assert job_of(harness).cancellation == cancellation
        harness.clock.advance(s=1)
        redrive(harness, "job", include_cancelled=True)
        assert (job_of(harness).is_cancelled, job_of(harness).cancellation) == (False, cancellation)
        acked(harness, claim_one(harness))
        assert job_of(harness).cancellation == cancellation

    @rule("O1")
    def test_cancelled_and_quarantined_jobs_are_counted_and_listed_apart(self, harness: Harness) -> None:
        job_in(harness, "quarantined")
        cancelled(harness, enqueue_one(harness, "other").id)
        (queue,) = harness.store.queues()
        for counts in (queue.counts, harness.store.totals().counts):
            assert (counts[JobState.DEAD], counts[JobState.CANCELLED]) == (1, 1)
        for state, ids in ((JobState.DEAD, ["job"]), (JobState.CANCELLED, ["other"])):
            page = harness.store.jobs(JobFilter(states=frozenset({state})))
            assert [job.spec.id for job in page.jobs] == ids

    @rule("O2", "F2")
    def test_a_redriven_job_has_all_its_retries_again(self, harness: Harness) -> None:
        enqueue_one(harness)
        for _ in range(4):
            nacked(harness, claim_one(harness))
        redrive(harness, "job")
        assert [nacked(harness, claim_one(harness)).state for _ in range(4)] == [JobState.READY] * 3 + [JobState.FAILED]
        assert job_of(harness).attempt == 8

    @rule("O2", "F4")
    def test_a_redriven_job_has_all_its_expirations_again(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_expirations=2))
        for expected in (JobState.READY, JobState.DEAD, JobState.READY, JobState.DEAD):
            lease = claim_one(harness)
            started(harness, lease)
            assert expired(harness, lease).state is expected
            if expected is JobState.DEAD:
                redrive(harness, "job")

    @rule("O2")
    def test_redrive_leaves_jobs_alone_that_did_not_end_badly(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness, "succeeded"))
        enqueue_and_claim(harness, "leased")
        enqueue_one(harness, "ready")
        before = everything(harness)
        assert redrive(harness, "succeeded", "leased", "ready", "nowhere") == Operated((), None)
        assert everything(harness) == before

    @rule("O2", "C2")
    def test_a_redriven_job_comes_behind_those_due_before_it(self, harness: Harness) -> None:
        enqueue_one(harness, "first")
        failed_for_good(harness, claim_one(harness))
        enqueue_many(harness, "second", "third")
        redrive(harness, "first")
        assert claim_ids(harness) == ["second", "third", "first"]

    @rule("O2", "O6")
    def test_redrive_takes_a_filter(self, harness: Harness) -> None:
        failed_for_good(harness, enqueue_and_claim(harness, "a", kind="mail"), "timeout at host")
        failed_for_good(harness, enqueue_and_claim(harness, "b", kind="mail"), "no such user")
        failed_for_good(harness, enqueue_and_claim(harness, "c", kind="other"), "timeout at host")
        cancelled(harness, enqueue_one(harness, "d", kind="mail").id)
        timeouts = JobFilter(kind="mail", error_contains="timeout")
        assert harness.store.redrive(timeouts, by=OPERATOR, reason=WHY).job_ids == ("a",)
        failed = JobFilter(states=frozenset({JobState.FAILED}))
        assert set(harness.store.redrive(failed, by=OPERATOR, reason=WHY).job_ids) == {"b", "c"}
        assert state_of(harness, "d") is JobState.CANCELLED

    @rule("O2", "O5")
    def test_an_id_named_twice_is_operated_on_once(self, harness: Harness) -> None:
        enqueue_many(harness, "job", "behind", lane=LANE)
        failed_for_good(harness, claim_one(harness))
        assert redrive(harness, "job", "job").job_ids == ("job",)
        acked(harness, claim_one(harness))
        acked(harness, claim_one(harness))
        claim_nothing(harness)
        assert purge(harness, "job", "behind", "job").job_ids == ("behind", "job")
        assert every_job(harness) == []

    @rule("O3")
    def test_everything_but_claim_works_in_a_paused_queue(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c", "d")
        first, second, third = claim(harness, 3)
        pause(harness)
        started(harness, first)
        committed(harness, first)
        acked(harness, first)
        nacked(harness, second, delay_us=1)
        expired(harness, third)
        enqueue_one(harness, "e")
        cancelled(harness, "d")
        claim_nothing(harness)
        assert [view.is_paused for view in harness.store.queues()] == [True]
        resume(harness)
        assert claim_ids(harness) == ["c", "b", "e"]

    @rule("O3")
    def test_a_queue_can_be_paused_before_it_has_jobs(self, harness: Harness) -> None:
        pause(harness)
        enqueue_one(harness)
        claim_nothing(harness)
        resume(harness)
        assert claim_ids(harness) == ["job"]

    @rule("O4", "I5")
    def test_a_queues_policy_holds_for_the_claims_that_follow(self, harness: Harness) -> None:
        """002: lease duration must be configurable at runtime."""
        enqueue_many(harness, "a", "b", "c")
        assert claim_one(harness).terms.lease_ttl_us == LEASE_US
        set_policy(harness, Policy(lease_ttl_us=60 * SECOND))
        lease = claim_one(harness)
        assert lease.expires_at == harness.clock.now() + 60 * SECOND
        set_policy(harness, Policy(max_retries=1))
        lease = claim_one(harness)
        assert (lease.terms.lease_ttl_us, lease.terms.max_retries) == (LEASE_US, 1)
        assert [view.policy for view in harness.store.queues()] == [Policy(max_retries=1)]

    @rule("O4")
    def test_policies_are_read_by_queue(self, harness: Harness) -> None:
        set_policy(harness, Policy(max_retries=1))
        enqueue_many(harness, "a", queue="other")
        question = GetPolicies(["nowhere", QUEUE, "other", QUEUE])
        assert harness.store.run(question) == [None, Policy(max_retries=1), None, Policy(max_retries=1)]
        assert harness.store.run(GetPolicies([])) == []

    @rule("O5")
    @pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "cancelled in flight", "quarantined"])
    def test_a_purged_job_is_forgotten(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        assert purge(harness, "job") == Operated(("job",), None)
        assert harness.store.job("job") is None
        assert every_job(harness) == []
        assert set(harness.store.queues()[0].counts.values()) == {0}

    @rule("O5")
    @pytest.mark.parametrize("state", ["ready", "retrying", "redriven", "leased", "started", "committed"])
    def test_a_job_that_has_not_ended_is_never_purged(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        before = everything(harness)
        assert purge(harness, "job") == Operated((), None)
        assert harness.store.purge(JobFilter(), by=OPERATOR, reason=WHY) == Operated((), None)
        assert everything(harness) == before

    @rule("O6")
    def test_redrive_and_purge_go_on_where_they_stopped(self, harness: Harness) -> None:
        ids = [f"job-{number}" for number in range(7)]
        enqueue_many(harness, *ids)
        for lease in claim(harness, 100):
            failed_for_good(harness, lease)
        redriven = self._sweep(harness, Verb.REDRIVE)
        assert redriven == ids
        for lease in claim(harness, 100):
            failed_for_good(harness, lease)
        assert self._sweep(harness, Verb.PURGE) == ids
        assert every_job(harness) == []

    def _sweep(self, harness: Harness, verb: Verb) -> list[str]:
        ids: list[str] = []
        after: int | None = 0
        while after is not None:
            operate = harness.store.redrive if verb is Verb.REDRIVE else harness.store.purge
            operated = operate(JobFilter(queue=QUEUE), by=OPERATOR, reason=WHY, limit=3, after=after)
            assert len(operated.job_ids) <= 3
            ids += operated.job_ids
            after = operated.after
        return ids

    @rule("O7")
    def test_retention_forgets_successes_by_age(self, harness: Harness) -> None:
        for number in range(5):
            acked(harness, enqueue_and_claim(harness, f"job-{number}"))
            harness.clock.advance(s=1)
        cutoff = harness.clock.now() - 2 * SECOND
        assert harness.store.prune(cutoff, keep=100) == 3
        assert [job.spec.id for job in every_job(harness)] == ["job-3", "job-4"]
        assert harness.store.prune(cutoff, keep=100) == 0

    @rule("O7")
    def test_retention_forgets_successes_by_number_the_oldest_first(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c", "d")
        leases = {lease.job.id: lease for lease in claim(harness, 4)}
        for job_id in ("c", "a", "d", "b"):
            acked(harness, leases[job_id])
            harness.clock.advance(s=1)
        assert harness.store.prune(0, keep=3) == 1
        assert {job.spec.id for job in every_job(harness)} == {"a", "b", "d"}
        assert harness.store.prune(0, keep=1) == 2
        assert {job.spec.id for job in every_job(harness)} == {"b"}

    @rule("O7", "O6")
    def test_retention_forgets_no_more_than_asked_at_a_time(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        for lease in claim(harness, 3):
            acked(harness, lease)
        later = harness.clock.now() + 1
        assert [harness.store.prune(later, keep=0, limit=2) for _ in range(3)] == [2, 1, 0]

    @rule("O7")
    def test_retention_forgets_nothing_but_successes(self, harness: Harness) -> None:
        for state in ("failed", "dead", "ready", "leased"):
            enqueue_one(harness, state, queue=state)
        failed_for_good(harness, claim_one(harness, queue="failed"))
        cancelled(harness, "dead")
        claim_one(harness, queue="leased")
        before = everything(harness)
        harness.clock.advance(s=1)
        assert harness.store.prune(harness.clock.now() + SECOND, keep=0) == 0
        assert everything(harness) == before
