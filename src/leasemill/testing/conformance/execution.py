"""X: what a start and a commit are, and that a commit happens once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasemill.kernel.commands import Commit, Committed, Conflict, Expiration, Followup, Lease, Lost, Nacked
from leasemill.kernel.model import (
    SECOND,
    ExecutionStatus,
    JobState,
    LossReason,
    Policy,
    Verb,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LEASE_US,
    OTHER,
    QUEUE,
    acked,
    cancelled,
    claim_ids,
    claim_nothing,
    claim_one,
    commit,
    committed,
    enqueue_and_claim,
    enqueue_one,
    every_job,
    everything,
    expire,
    expired,
    job_of,
    last_execution,
    let_expire,
    nack,
    nacked,
    refused,
    released,
    start,
    started,
    state_of,
    status_of,
)
from leasemill.testing.rules import rule


class Executing:
    @rule("X1")
    def test_the_happy_path(self, harness: Harness) -> None:
        """003: LEASED to IN_PROGRESS to COMMITTED to DONE; the job is SUCCEEDED when its execution is DONE."""
        seen = []
        enqueue_one(harness)
        lease = claim_one(harness)
        for step in (started, committed, acked):
            seen.append((status_of(harness), state_of(harness)))
            step(harness, lease)
        seen.append((status_of(harness), state_of(harness)))
        assert seen == [
            (ExecutionStatus.LEASED, JobState.LEASED),
            (ExecutionStatus.STARTED, JobState.LEASED),
            (ExecutionStatus.COMMITTED, JobState.LEASED),
            (ExecutionStatus.DONE, JobState.SUCCEEDED),
        ]

    @rule("X3")
    def test_a_start_reported_late_carries_how_long_ago_it_was(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=5)
        start(harness, lease, age_us=2 * SECOND)
        assert last_execution(harness).started_at == harness.clock.now() - 2 * SECOND

    @rule("X3")
    def test_nothing_started_before_it_was_leased(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        start(harness, lease, age_us=100 * SECOND)
        assert last_execution(harness).started_at == lease.leased_at

    @rule("X3", "X6")
    def test_the_commit_of_a_block_implies_its_start_as_any_commit_does(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=5)
        block = harness.store.block(lease, 10.0)
        assert block.begin() is None
        harness.clock.advance(s=5)
        assert block.commit(Commit("job", lease.token)) == Committed("job", ())
        execution = last_execution(harness)
        assert execution.started_at == execution.committed_at == harness.clock.now()

    @rule("X3")
    def test_a_second_start_changes_nothing(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        before = everything(harness)
        harness.clock.advance(s=1)
        started(harness, lease)
        assert everything(harness) == before

    @rule("X3")
    @pytest.mark.parametrize("act", [committed, acked, nacked])
    def test_commit_ack_and_nack_imply_a_start(self, harness: Harness, act: Callable[[Harness, Lease], object]) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        act(harness, lease)
        assert last_execution(harness).started_at == harness.clock.now()

    @rule("X3", "N11", "F4")
    def test_a_failure_that_keeps_the_lease_implies_a_start(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        nacked(harness, lease, keep_lease=True, report_id="first")
        assert status_of(harness) is ExecutionStatus.STARTED
        assert last_execution(harness).started_at == harness.clock.now()
        expired(harness, lease)
        assert job_of(harness).expirations == 1

    @rule("X4")
    def test_a_duplicate_execution_cannot_commit(self, harness: Harness) -> None:
        """003, FM_001: A's lease expires, B runs the same job; both would apply the effect. One does."""
        a = enqueue_and_claim(harness)
        started(harness, a)
        let_expire(harness, a)
        b = claim_one(harness, worker=OTHER)
        started(harness, b)
        assert isinstance(commit(harness, a, result=b'"A"', followups=[Followup("later", "kind")]), Lost)
        committed(harness, b, result=b'"B"', followups=[Followup("later", "kind")])
        assert isinstance(commit(harness, a, result=b'"A"'), Lost)
        acked(harness, b)
        job = job_of(harness)
        assert [one.committed_at is not None for one in job.executions] == [False, True]
        assert job.result == b'"B"'
        assert len(claim_ids(harness, 100, "later")) == 1

    @rule("X4")
    def test_a_second_commit_adds_nothing(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        first = committed(harness, lease, result=b"1", followups=[Followup("later", "kind")])
        harness.clock.advance(s=1)
        before = everything(harness)
        second = committed(harness, lease, result=b"1", followups=[Followup("later", "kind")])
        assert (second.followup_ids, second.is_repeat) == (first.followup_ids, True)
        assert everything(harness) == before

    @rule("X4", "X5")
    def test_a_committed_job_is_never_given_to_another(self, harness: Harness) -> None:
        """003: a later execution must find the commit and do nothing; here there is no later execution."""
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        harness.clock.advance(us=10 * LEASE_US)
        claim_nothing(harness)
        assert state_of(harness) is JobState.SUCCEEDED
        assert job_of(harness).attempt == 1

    @rule("X5")
    def test_expiry_finishes_a_committed_job(self, harness: Harness) -> None:
        """003: a crash after COMMITTED and before DONE is finalized without doing the effect again."""
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        let_expire(harness, lease)
        assert expire(harness) == [Expiration("job", lease.worker, 1, 0, JobState.SUCCEEDED)]
        execution = last_execution(harness)
        assert (execution.status, execution.ended_by) == (ExecutionStatus.DONE, Verb.EXPIRE)
        job = job_of(harness)
        assert (job.result, job.expirations) == (b"1", 0)

    @rule("X5")
    def test_nack_finishes_a_committed_job_and_its_error_is_a_note(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        assert nack(harness, lease, "late error") == Nacked("job", JobState.SUCCEEDED, 0)
        execution = last_execution(harness)
        assert (execution.status, execution.ended_by, execution.error) == (
            ExecutionStatus.DONE,
            Verb.NACK,
            "late error",
        )
        assert (job_of(harness).retries, job_of(harness).result) == (0, b"1")

    @rule("X5")
    def test_release_finishes_a_committed_job_and_its_reason_is_a_note(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        assert released(harness, lease, error="too late").state is JobState.SUCCEEDED
        assert (last_execution(harness).ended_by, last_execution(harness).error) == (Verb.RELEASE, "too late")

    @rule("X5", "O1", "O8")
    def test_cancel_finishes_a_committed_job_and_says_who_and_why(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        assert cancelled(harness).state is JobState.SUCCEEDED
        execution = last_execution(harness)
        assert (execution.status, execution.ended_by) == (ExecutionStatus.DONE, Verb.CANCEL)
        assert "because" in (execution.error or "")
        assert [(one.verb, one.by, one.target, one.reason) for one in harness.store.actions()] == [
            (Verb.CANCEL, "ada", "job", "because")
        ]
        assert acked(harness, lease).is_repeat

    @rule("X5")
    def test_nack_finishes_a_committed_job_whose_lease_ended(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        harness.clock.advance(us=LEASE_US)
        assert nacked(harness, lease).state is JobState.SUCCEEDED

    @rule("X6")
    def test_a_commit_is_the_marker_the_result_and_the_followups(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        policy = Policy(max_retries=1)
        followups = [
            Followup("later", "mail", b'{"to": 1}', priority=3, delay_us=SECOND, policy=policy),
            Followup(QUEUE, "kind", lane="lane"),
        ]
        outcome = commit(harness, lease, result=b'{"done": true}', followups=followups)
        assert isinstance(outcome, Committed)
        assert not outcome.is_repeat
        assert job_of(harness).result == b'{"done": true}'
        assert last_execution(harness).committed_at == harness.clock.now()
        mail, other = (job_of(harness, job_id) for job_id in outcome.followup_ids)
        assert (mail.spec.queue, mail.spec.kind, mail.spec.payload) == ("later", "mail", b'{"to": 1}')
        assert (mail.spec.priority, mail.spec.policy) == (3, policy)
        assert mail.available_at == harness.clock.now() + SECOND
        assert (other.spec.lane, other.state) == ("lane", JobState.READY)
        assert claim_ids(harness) == [other.spec.id]

    @rule("X6")
    def test_a_conflicting_followup_refuses_the_whole_commit_and_leaves_the_lease(self, harness: Harness) -> None:
        probe = enqueue_and_claim(harness, "probe")
        taken_id = committed(harness, probe, followups=[Followup("later", "kind")] * 2).followup_ids[1]
        enqueue_one(harness, taken_id.replace("probe", "job"), payload=b'"mine"')
        lease = enqueue_and_claim(harness, priority=9)
        before = everything(harness)
        followups = [Followup("later", "kind"), Followup("later", "kind")]
        conflict = commit(harness, lease, result=b"1", followups=followups)
        assert conflict == Conflict(taken_id.replace("probe", "job"))
        assert everything(harness) == before
        committed(harness, lease, result=b"1", followups=followups[:1])

    @rule("X6", "E2")
    def test_a_followup_that_is_known_with_the_same_content_is_no_conflict(self, harness: Harness) -> None:
        probe = enqueue_and_claim(harness, "probe")
        known_id = committed(harness, probe, followups=[Followup("later", "kind")]).followup_ids[0]
        enqueue_one(harness, known_id.replace("probe", "job"), queue="later")
        count = len(every_job(harness))
        lease = enqueue_and_claim(harness)
        committed(harness, lease, followups=[Followup("later", "kind")])
        assert len(every_job(harness)) == count + 1

    @rule("X6", "I6")
    def test_a_job_can_follow_up_on_itself_for_ever(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, "j" * 200)
        seen = {lease.job.id}
        for _ in range(120):
            (followup_id,) = committed(harness, lease, followups=[Followup(QUEUE, "kind")]).followup_ids
            assert len(followup_id) <= 200
            assert followup_id not in seen
            seen.add(followup_id)
            acked(harness, lease)
            lease = claim_one(harness)
            assert lease.job.id == followup_id

    @rule("X6", "L4")
    def test_a_refused_commit_enqueues_nothing(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        let_expire(harness, lease)
        refused(commit(harness, lease, followups=[Followup("later", "kind")]), LossReason.EXPIRED)
        assert [job.spec.id for job in every_job(harness)] == ["job"]

    @rule("X7")
    def test_ack_without_commit_does_both_in_one(self, harness: Harness) -> None:
        """001: InFlight to Succeeded by Ack."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        acked(harness, lease, b'{"n": 1}')
        job, execution = job_of(harness), last_execution(harness)
        assert (job.state, job.result) == (JobState.SUCCEEDED, b'{"n": 1}')
        assert execution.committed_at == execution.finished_at == harness.clock.now()
        assert (execution.committed_by, execution.ended_by) == (Verb.ACK, Verb.ACK)

    @rule("X7")
    def test_a_result_that_was_committed_is_not_replaced_by_ack(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b'"committed"')
        acked(harness, lease, b'"acked"')
        assert job_of(harness).result == b'"committed"'

    @rule("X7")
    def test_results_may_be_absent_and_come_back_byte_for_byte(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness, "none"))
        acked(harness, enqueue_and_claim(harness, "null"), b"null")
        acked(harness, enqueue_and_claim(harness, "odd"), b'{"b" : 1,"a":"\\u0000"}')
        assert [job.result for job in every_job(harness)] == [None, b"null", b'{"b" : 1,"a":"\\u0000"}']
