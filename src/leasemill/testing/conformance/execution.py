"""X: how executions move, what a commit is, and that it happens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from leasemill.kernel.commands import Commit, Committed, Conflict, Expiration, Followup, Lease, Lost, Nacked
from leasemill.kernel.model import (
    SECOND,
    AbortReason,
    Execution,
    ExecutionStatus,
    Job,
    JobState,
    LossReason,
    Policy,
    Terms,
    Verb,
    derived_state,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.states import STATES, job_in
from leasemill.testing.conformance.steps import (
    LEASE_US,
    OTHER,
    QUEUE,
    ack,
    acked,
    cancel,
    cancelled,
    claim,
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
    failed_for_good,
    job_of,
    last_execution,
    let_expire,
    nack,
    nacked,
    purge,
    redrive,
    refused,
    release,
    released,
    start,
    started,
    state_of,
    status_of,
)
from leasemill.testing.rules import rule

READY, LEASED, SUCCEEDED, FAILED, DEAD, CANCELLED = JobState
GONE: Final = "gone"


def let_pass(harness: Harness) -> list[Expiration]:
    harness.clock.advance(us=LEASE_US)
    return expire(harness)


ACTS: Final[dict[str, Callable[[Harness, Lease], object]]] = {
    "claim": lambda harness, _: claim(harness, worker=OTHER),
    "start": start,
    "commit": commit,
    "ack": ack,
    "nack": nack,
    "nack for good": lambda harness, lease: nack(harness, lease, is_permanent=True),
    "release": release,
    "expire": lambda harness, lease: let_pass(harness),
    "cancel": lambda harness, _: cancel(harness),
    "redrive": lambda harness, _: redrive(harness, "job"),
    "redrive cancelled": lambda harness, _: redrive(harness, "job", include_cancelled=True),
    "purge": lambda harness, _: purge(harness, "job"),
}

MOVES: Final[dict[str, dict[str, JobState | str]]] = {
    "ready": {"claim": LEASED, "cancel": CANCELLED},
    "retrying": {"cancel": CANCELLED},
    "redriven": {"claim": LEASED, "cancel": CANCELLED},
    "leased": {
        "ack": SUCCEEDED,
        "nack": READY,
        "nack for good": FAILED,
        "release": READY,
        "expire": READY,
        "cancel": CANCELLED,
    },
    "started": {
        "ack": SUCCEEDED,
        "nack": READY,
        "nack for good": FAILED,
        "release": READY,
        "expire": READY,
        "cancel": CANCELLED,
    },
    "committed": dict.fromkeys(["ack", "nack", "nack for good", "release", "expire", "cancel"], SUCCEEDED),
    "succeeded": {"purge": GONE},
    "failed": {"cancel": CANCELLED, "redrive": READY, "redrive cancelled": READY, "purge": GONE},
    "cancelled": {"redrive cancelled": READY, "purge": GONE},
    "cancelled in flight": {"redrive cancelled": READY, "purge": GONE},
    "quarantined": {"cancel": CANCELLED, "redrive": READY, "redrive cancelled": READY, "purge": GONE},
}
"""The contract's table: from a state, by an act, to a state; every other pair changes no state."""

STATUS_MOVES: Final[dict[tuple[ExecutionStatus, ExecutionStatus], frozenset[str]]] = {
    (ExecutionStatus.LEASED, ExecutionStatus.STARTED): frozenset({"start"}),
    (ExecutionStatus.LEASED, ExecutionStatus.COMMITTED): frozenset({"commit"}),
    (ExecutionStatus.STARTED, ExecutionStatus.COMMITTED): frozenset({"commit"}),
    (ExecutionStatus.LEASED, ExecutionStatus.DONE): frozenset({"ack"}),
    (ExecutionStatus.STARTED, ExecutionStatus.DONE): frozenset({"ack"}),
    (ExecutionStatus.COMMITTED, ExecutionStatus.DONE): frozenset(
        {"ack", "nack", "nack for good", "release", "expire", "cancel"}
    ),
    (ExecutionStatus.LEASED, ExecutionStatus.ABORTED): frozenset(
        {"nack", "nack for good", "release", "expire", "cancel"}
    ),
    (ExecutionStatus.STARTED, ExecutionStatus.ABORTED): frozenset(
        {"nack", "nack for good", "release", "expire", "cancel"}
    ),
}


def held_lease(harness: Harness, lease: Lease | None) -> Lease:
    """The job's lease, or for a job without one a lease nobody has."""
    if lease is not None:
        return lease
    job = job_of(harness)
    return Lease(job.spec, "nobody's", 0, 0, OTHER, 0, 0, Terms(), 0, 0, job.created_at)


def latest(job: Job) -> Execution | None:
    return job.executions[-1] if job.executions else None


class Executing:
    @rule("X1", "X2")
    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("state", STATES)
    def test_a_job_moves_as_the_contract_says_and_in_no_other_way(self, harness: Harness, state: str, act: str) -> None:
        """001's transition matrix, with what 002 to 004 add to it."""
        lease = held_lease(harness, job_in(harness, state))
        before = job_of(harness)
        ACTS[act](harness, lease)
        after = harness.store.job("job")
        expected = MOVES[state].get(act, before.state)
        assert (GONE if after is None else after.state) == expected
        if after is not None:
            assert after.state is derived_state(after)
            assert after.attempt == before.attempt + (act == "claim" and state in ("ready", "redriven"))

    @rule("X1")
    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("state", STATES)
    def test_an_execution_moves_as_the_contract_says_and_in_no_other_way(
        self, harness: Harness, state: str, act: str
    ) -> None:
        """003: LEASED, IN_PROGRESS, COMMITTED, DONE, with ABORTED before the commit; nothing leads back."""
        lease = held_lease(harness, job_in(harness, state))
        before = latest(job_of(harness))
        ACTS[act](harness, lease)
        job = harness.store.job("job")
        if before is None or job is None:
            return
        (after,) = [one for one in job.executions if one.attempt == before.attempt]
        by = STATUS_MOVES.get((before.status, after.status), frozenset())
        assert (before.status is after.status) != (act in by)
        assert before.status not in (ExecutionStatus.DONE, ExecutionStatus.ABORTED) or after == before

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
            (ExecutionStatus.LEASED, LEASED),
            (ExecutionStatus.STARTED, LEASED),
            (ExecutionStatus.COMMITTED, LEASED),
            (ExecutionStatus.DONE, SUCCEEDED),
        ]

    @rule("X2")
    @pytest.mark.parametrize("state", STATES)
    def test_the_jobs_state_is_what_its_executions_say(self, harness: Harness, state: str) -> None:
        """003: job state is computed from execution records and never set on its own."""
        job_in(harness, state)
        assert job_of(harness).state is derived_state(job_of(harness))

    @rule("X2")
    @pytest.mark.parametrize("state", STATES)
    def test_a_job_has_a_live_lease_exactly_while_it_is_leased(self, harness: Harness, state: str) -> None:
        """004: a task in WAITING has no lease, one in LEASED has exactly one."""
        lease = job_in(harness, state)
        live = [one for one in job_of(harness).executions if one.finished_at is None]
        assert len(live) == (state_of(harness) is LEASED) == (lease is not None)

    @rule("X3")
    def test_a_start_told_late_says_how_long_ago_it_was(self, harness: Harness) -> None:
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
        assert state_of(harness) is SUCCEEDED
        assert job_of(harness).attempt == 1

    @rule("X5")
    def test_expiry_finishes_a_committed_job(self, harness: Harness) -> None:
        """003: a crash after COMMITTED and before DONE is finalized without doing the effect again."""
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        let_expire(harness, lease)
        assert expire(harness) == [Expiration("job", lease.worker, 1, 0, SUCCEEDED)]
        execution = last_execution(harness)
        assert (execution.status, execution.ended_by) == (ExecutionStatus.DONE, Verb.EXPIRE)
        job = job_of(harness)
        assert (job.result, job.expirations) == (b"1", 0)

    @rule("X5")
    def test_nack_finishes_a_committed_job_and_its_error_is_a_note(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        assert nack(harness, lease, "late error") == Nacked("job", SUCCEEDED, 0)
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
        assert released(harness, lease, error="too late").state is SUCCEEDED
        assert (last_execution(harness).ended_by, last_execution(harness).error) == (Verb.RELEASE, "too late")

    @rule("X5", "O1", "O8")
    def test_cancel_finishes_a_committed_job_and_says_who_and_why(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        assert cancelled(harness).state is SUCCEEDED
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
        assert nacked(harness, lease).state is SUCCEEDED

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
        assert (other.spec.lane, other.state) == ("lane", READY)
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
        assert (job.state, job.result) == (SUCCEEDED, b'{"n": 1}')
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

    @rule("X1", "F2")
    def test_succeeded_is_for_ever(self, harness: Harness) -> None:
        """004: completed tasks never transition again."""
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        before = job_of(harness)
        harness.clock.advance(us=10 * LEASE_US)
        refused(nack(harness, lease))
        cancel(harness)
        redrive(harness, "job")
        expire(harness)
        claim_nothing(harness)
        after = job_of(harness)
        assert (after.state, after.executions) == (before.state, before.executions)

    @rule("X1")
    def test_an_aborted_execution_never_comes_back(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        failed_for_good(harness, lease)
        refused(ack(harness, lease))
        refused(commit(harness, lease))
        assert (status_of(harness), last_execution(harness).reason) == (ExecutionStatus.ABORTED, AbortReason.FAILED)
