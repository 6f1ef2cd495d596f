"""I: what a job, an execution and a token are."""

from __future__ import annotations

import pytest

from leasemill.errors import JobConflict, QueueRefused
from leasemill.kernel.commands import AcquireRequest, Enqueue, Enqueued, Followup
from leasemill.kernel.model import (
    EXECUTIONS_KEPT,
    NEVER,
    SECOND,
    AbortReason,
    ExecutionStatus,
    JobState,
    LossReason,
    OnFailure,
    Policy,
    QueueMode,
    Terms,
    Verb,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    OFFSETS,
    OTHER,
    QUEUE,
    WORKER,
    ack,
    acked,
    acquire,
    acquire_one,
    claim,
    claim_one,
    commit,
    committed,
    enqueue,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    everything,
    expired,
    extended,
    failed_for_good,
    job_of,
    last_execution,
    nacked,
    new_token,
    redrive,
    refused,
    released,
    set_policy,
    spec,
    start,
    started,
    state_of,
)
from leasemill.testing.rules import rule


class Identity:
    @rule("I1")
    def test_one_claim_is_one_execution_and_one_attempt(self, harness: Harness) -> None:
        enqueue_one(harness)
        assert job_of(harness).attempt == 0
        assert job_of(harness).executions == ()
        lease = claim_one(harness)
        job = job_of(harness)
        assert lease.attempt == job.attempt == 1
        assert [(one.attempt, one.token) for one in job.executions] == [(1, lease.token)]

    @rule("I1", "O2")
    def test_attempt_counts_every_claim_and_never_goes_back(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        released(harness, lease)
        lease = claim_one(harness)
        assert lease.attempt == 2
        expired(harness, lease)
        lease = claim_one(harness)
        assert lease.attempt == 3
        nacked(harness, lease)
        lease = claim_one(harness)
        assert lease.attempt == 4
        failed_for_good(harness, lease)
        redrive(harness, "job")
        assert job_of(harness).attempt == 4
        assert claim_one(harness).attempt == 5
        assert [one.attempt for one in job_of(harness).executions] == [1, 2, 3, 4, 5]

    @rule("I2")
    def test_every_claim_has_a_token_of_its_own(self, harness: Harness) -> None:
        """001: each claim generates a new unique lease token."""
        enqueue_many(harness, "a", "b", "c")
        tokens = [lease.token for lease in claim(harness, 3)]
        enqueue_one(harness, "d")
        for _ in range(5):
            lease = claim_one(harness)
            tokens.append(lease.token)
            released(harness, lease)
        assert len(set(tokens)) == 8

    @rule("I2", "L2")
    def test_a_worker_is_fenced_from_its_own_earlier_lease(self, harness: Harness) -> None:
        """002 would have one token for each worker; then a worker could report on a job that it lost and got again."""
        earlier = enqueue_and_claim(harness)
        expired(harness, earlier)
        later = claim_one(harness)
        assert later.worker == earlier.worker
        refused(ack(harness, earlier), LossReason.SUPERSEDED)
        assert state_of(harness) is JobState.LEASED
        acked(harness, later)

    @rule("I3")
    def test_the_fence_rises_with_every_grant_in_the_store(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        enqueue_one(harness, "d", queue="elsewhere")
        fences = [lease.fence for lease in claim(harness, 2)]
        fences.append(acquire_one(harness, 1).fence)
        fences += [lease.fence for lease in claim(harness, 1, queues=["elsewhere"])]
        lease = claim_one(harness)
        fences.append(lease.fence)
        released(harness, lease)
        fences.append(claim_one(harness).fence)
        assert fences == sorted(set(fences))
        assert job_of(harness, "c").executions[-1].fence == fences[-1]
        assert harness.store.totals().fence >= fences[-1]

    @rule("I4")
    def test_a_job_has_what_its_caller_gave_and_defaults_for_the_rest(self, harness: Harness) -> None:
        now = harness.clock.now()
        enqueue_one(harness)
        job = job_of(harness)
        assert (job.spec.queue, job.spec.kind, job.spec.payload) == (QUEUE, "kind", b"{}")
        assert (job.spec.lane, job.spec.priority, job.spec.policy) == (None, 0, None)
        assert (job.created_at, job.available_at, job.updated_at) == (now, now, now)
        assert (job.state, job.attempt, job.retries, job.expirations) == (JobState.READY, 0, 0, 0)
        harness.clock.advance(s=1)
        claim_one(harness)
        assert job_of(harness).created_at == now
        assert job_of(harness).updated_at == now + SECOND

    @rule("I4")
    def test_everything_given_comes_back_as_it_was(self, harness: Harness) -> None:
        policy = Policy(1, 2 * SECOND, 3 * SECOND, 4, 5, 6, OnFailure.BLOCK)
        payload = '{"text": "\\u0000 é ✓", "number": 12345678901234567890123, "b": 1, "a": [ ]}'.encode()
        run_at = harness.clock.now() + 1
        given = spec("ein/jöb no. 1", payload=payload, lane="lane é/1", priority=9, run_at=run_at, policy=policy)
        assert enqueue(harness, given) == Enqueued(given.id)
        assert job_of(harness, given.id).spec == given
        harness.clock.advance(us=1)
        assert claim_one(harness).job == given

    @rule("I4")
    def test_the_longest_and_the_largest_are_taken(self, harness: Harness) -> None:
        largest = b'"' + b"x" * (1024 * 1024 - 2) + b'"'
        given = spec("i" * 200, queue="q" * 100, kind="k" * 100, lane="l" * 200, payload=largest, priority=9)
        assert enqueue(harness, given) == Enqueued(given.id)
        assert claim_one(harness, queue="q" * 100).job == given
        odd = spec("odd", queue="_Az09.:-", kind="0")
        assert enqueue(harness, odd) == Enqueued("odd")

    @rule("I5")
    def test_the_defaults_hold_where_nothing_is_asked(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        assert lease.terms == Terms(
            max_retries=3,
            lease_ttl_us=30 * SECOND,
            timeout_us=90 * SECOND,
            max_expirations=5,
            backoff_base_us=SECOND // 2,
            backoff_cap_us=30 * SECOND,
            on_failure=OnFailure.CONTINUE,
        )
        assert lease.expires_at == harness.clock.now() + 30 * SECOND

    @rule("I5")
    def test_the_job_goes_before_the_queue_and_the_queue_before_the_kind(self, harness: Harness) -> None:
        kinds = {"kind": Policy(max_retries=7, max_expirations=7, lease_ttl_us=7 * SECOND, backoff_cap_us=7 * SECOND)}
        set_policy(harness, Policy(max_retries=8, max_expirations=8, lease_ttl_us=8 * SECOND))
        enqueue_one(harness, "a", policy=Policy(max_retries=9))
        enqueue_one(harness, "b")
        enqueue_one(harness, "c", kind="other")
        by_all, by_two, by_queue = [lease.terms for lease in harness.store.claim(WORKER, [QUEUE], 3, kinds=kinds)]
        assert (by_all.max_retries, by_all.max_expirations, by_all.backoff_cap_us) == (9, 8, 7 * SECOND)
        assert (by_two.max_retries, by_two.max_expirations, by_two.backoff_cap_us) == (8, 8, 7 * SECOND)
        assert (by_queue.max_retries, by_queue.backoff_cap_us) == (8, 30 * SECOND)

    @rule("I5")
    def test_the_timeout_is_three_leases_unless_it_is_given(self, harness: Harness) -> None:
        enqueue_one(harness, "a", policy=Policy(lease_ttl_us=7 * SECOND))
        enqueue_one(harness, "b", policy=Policy(lease_ttl_us=7 * SECOND, timeout_us=SECOND))
        first, second = claim(harness, 2)
        assert (first.terms.timeout_us, second.terms.timeout_us) == (21 * SECOND, SECOND)

    @rule("I5")
    def test_what_was_settled_at_claim_holds_for_that_execution(self, harness: Harness) -> None:
        set_policy(harness, Policy(max_retries=1, lease_ttl_us=10 * SECOND))
        lease = enqueue_and_claim(harness)
        set_policy(harness, Policy(max_retries=0, lease_ttl_us=99 * SECOND))
        harness.clock.advance(s=1)
        assert extended(harness, lease) == harness.clock.now() + 10 * SECOND
        assert last_execution(harness).terms.max_retries == 1
        assert nacked(harness, lease).state is JobState.READY

    @rule("I6")
    def test_an_acquired_jobs_id_follows_from_its_place(self, harness: Harness) -> None:
        places = [("offsets", "A", 1), ("offsets", "B", 1), ("more", "A", 1)]
        ids = [acquire_one(harness, offset, queue=queue, lane=lane).job.id for queue, lane, offset in places]
        assert len(set(ids)) == 3
        for job_id, place in zip(ids, places, strict=True):
            job = job_of(harness, job_id)
            assert (job.spec.queue, job.spec.lane, job.spec.offset) == place

    @rule("I6", "X6")
    def test_a_followups_id_follows_from_its_parents_and_its_index(self, harness: Harness) -> None:
        first, second = enqueue_and_claim(harness, "one"), enqueue_and_claim(harness, "two")
        followups = [Followup("later", "kind"), Followup("later", "kind")]
        ids = committed(harness, first, followups=followups).followup_ids
        assert committed(harness, first, followups=followups).followup_ids == ids
        other_ids = committed(harness, second, followups=followups).followup_ids
        assert len({*ids, *other_ids}) == 4
        assert [job_of(harness, job_id).spec.queue for job_id in (*ids, *other_ids)] == ["later"] * 4

    @rule("I7", "N8")
    def test_a_queue_used_with_enqueue_refuses_acquire(self, harness: Harness) -> None:
        enqueue_one(harness)
        before = everything(harness)
        with pytest.raises(QueueRefused):
            acquire(harness, 1, queue=QUEUE)
        assert everything(harness) == before

    @rule("I7", "N8")
    def test_a_queue_used_with_acquire_refuses_enqueue_claim_and_followups(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        acquire_one(harness, 1)
        before = everything(harness)
        with pytest.raises(QueueRefused):
            harness.store.enqueue([spec("a"), spec("b", queue=OFFSETS)])
        with pytest.raises(QueueRefused):
            claim(harness, queues=[QUEUE, OFFSETS])
        with pytest.raises(QueueRefused):
            commit(harness, lease, followups=[Followup(QUEUE, "kind"), Followup(OFFSETS, "kind")])
        assert everything(harness) == before

    @rule("I7", "N8")
    @pytest.mark.parametrize("lane", [None, LANE])
    def test_the_first_call_after_an_opening_cannot_enqueue_where_acquire_is_used(
        self, harness: Harness, lane: str | None
    ) -> None:
        lease = acquire_one(harness, 1)
        before = everything(harness)
        harness.reopen()
        new = [spec("a"), spec("b", queue=OFFSETS, lane=lane)]
        with pytest.raises(QueueRefused):
            harness.store.run(Enqueue(new, are_new=True))
        assert everything(harness) == before
        acked(harness, lease)
        acquire_one(harness, 2)

    @rule("I7")
    def test_a_queue_is_what_its_first_job_made_it(self, harness: Harness) -> None:
        set_policy(harness, Policy(max_retries=1), queue=OFFSETS)
        set_policy(harness, Policy(max_retries=1), queue=QUEUE)
        assert {view.name: view.mode for view in harness.store.queues()} == {QUEUE: None, OFFSETS: None}
        acquire_one(harness, 1)
        enqueue_one(harness)
        assert {view.name: view.mode for view in harness.store.queues()} == {
            QUEUE: QueueMode.CLAIM,
            OFFSETS: QueueMode.ACQUIRE,
        }

    @rule("I6", "I7", "C7")
    def test_acquire_never_takes_another_queues_job_that_has_its_id(self, harness: Harness) -> None:
        taken_id = acquire_one(harness, 1, queue="probe").job.id.replace("probe", OFFSETS)
        enqueue_one(harness, taken_id)
        before = everything(harness)
        free = AcquireRequest(OFFSETS, "free", 1, WORKER, new_token())
        taken = AcquireRequest(OFFSETS, "A", 1, WORKER, new_token())
        with pytest.raises(JobConflict):
            harness.store.acquire([free, taken])
        assert everything(harness) == before

    @rule("I8")
    def test_an_execution_records_who_held_the_job_when_and_how_it_ended(self, harness: Harness) -> None:
        begun = harness.clock.now()
        lease = enqueue_and_claim(harness)
        execution = last_execution(harness)
        assert (execution.job_id, execution.attempt, execution.fence) == ("job", 1, lease.fence)
        assert (execution.worker, execution.token, execution.terms) == (WORKER, lease.token, lease.terms)
        assert (execution.leased_at, execution.expires_at) == (begun, begun + 30 * SECOND)
        assert execution.status is ExecutionStatus.LEASED
        assert (execution.started_at, execution.committed_at, execution.finished_at) == (None, None, None)
        harness.clock.advance(s=1)
        started(harness, lease)
        harness.clock.advance(s=1)
        committed(harness, lease)
        harness.clock.advance(s=1)
        acked(harness, lease)
        execution = last_execution(harness)
        assert execution.started_at == begun + 1 * SECOND
        assert execution.committed_at == begun + 2 * SECOND
        assert execution.finished_at == begun + 3 * SECOND
        assert (execution.status, execution.ended_by) == (ExecutionStatus.DONE, Verb.ACK)
        assert (execution.committed_by, execution.reason, execution.error) == (Verb.COMMIT, None, None)

    @rule("I8")
    def test_aborted_executions_record_why(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        released(harness, lease)
        expired(harness, claim_one(harness))
        nacked(harness, claim_one(harness, worker=OTHER), "first error")
        failed_for_good(harness, claim_one(harness), "second error")
        recorded = [(one.worker, one.status, one.reason, one.error) for one in job_of(harness).executions]
        aborted = ExecutionStatus.ABORTED
        assert recorded == [
            (WORKER, aborted, AbortReason.RELEASED, None),
            (WORKER, aborted, AbortReason.EXPIRED, None),
            (OTHER, aborted, AbortReason.FAILED, "first error"),
            (WORKER, aborted, AbortReason.FAILED, "second error"),
        ]
        assert all(one.finished_at is not None for one in job_of(harness).executions)

    @rule("I8")
    def test_of_many_executions_the_first_and_the_latest_are_kept(self, harness: Harness) -> None:
        enqueue_one(harness)
        claims = EXECUTIONS_KEPT + 3
        first_lease = claim_one(harness)
        released(harness, first_lease)
        for _ in range(claims - 2):
            released(harness, claim_one(harness))
        claim_one(harness)
        job = job_of(harness)
        assert job.attempt == claims
        assert [one.attempt for one in job.executions] == [1, *range(claims - EXECUTIONS_KEPT + 2, claims + 1)]
        refused(start(harness, first_lease), LossReason.ENDED)

    @rule("I8", "N9")
    def test_a_lease_without_end_is_read_as_such(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        assert lease.expires_at == NEVER
        assert last_execution(harness, lease.job.id).expires_at == NEVER
