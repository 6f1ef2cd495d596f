"""L: a report counts with the current token; its repeat gets the same answer; what comes too late is refused."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import (
    AckReport,
    LeaseRef,
    Lost,
    Nacked,
    NackReport,
    ReleaseReport,
    StartReport,
)
from leasemill.kernel.model import (
    REFUSALS_KEPT,
    SECOND,
    ExecutionStatus,
    JobState,
    LossReason,
    Verb,
)
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.repeats import REPEATS
from leasemill.testing.conformance.steps import (
    LEASE_US,
    OTHER,
    REPORTS,
    WORKER,
    ack,
    acked,
    cancelled,
    claim,
    claim_one,
    commit,
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
    keep,
    last_execution,
    let_expire,
    nack,
    nacked,
    new_token,
    purge,
    redrive,
    refused,
    release,
    released,
    start,
    started,
    state_of,
)
from leasemill.testing.rules import rule

every_report = pytest.mark.parametrize("verb", REPORTS)


class Reporting:
    @rule("L2", "L4")
    @every_report
    def test_a_stale_token_cannot_report(self, harness: Harness, verb: Verb) -> None:
        """001: delayed acks and nacks are rejected; 002: updates without a matching token are rejected."""
        stale = enqueue_and_claim(harness)
        let_expire(harness, stale)
        held = claim_one(harness, worker=OTHER)
        before = job_of(harness)
        refused(REPORTS[verb](harness, stale), LossReason.SUPERSEDED)
        after = job_of(harness)
        assert after.executions == before.executions
        assert (after.state, after.retries, after.result) == (JobState.LEASED, 0, None)
        acked(harness, held)

    @rule("L2", "L5")
    def test_a_stale_token_cannot_ack(self, harness: Harness) -> None:
        stale = enqueue_and_claim(harness)
        let_expire(harness, stale)
        claim_one(harness, worker=OTHER)
        lost = refused(ack(harness, stale, b'"stale"'), LossReason.SUPERSEDED)
        assert (lost.verb, lost.attempt, lost.current_attempt) == (Verb.ACK, 1, 2)
        assert state_of(harness) is JobState.LEASED
        assert job_of(harness).result is None

    @rule("L2")
    @every_report
    def test_a_token_nobody_was_given_is_refused(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        forged = type(lease)(
            lease.job,
            new_token(),
            1,
            lease.fence,
            WORKER,
            lease.leased_at,
            lease.expires_at,
            lease.terms,
            0,
            0,
            lease.created_at,
        )
        lost = refused(REPORTS[verb](harness, forged), LossReason.UNKNOWN)
        assert (lost.attempt, lost.current_attempt) == (None, 1)
        assert state_of(harness) is JobState.LEASED

    @rule("L2")
    def test_another_jobs_token_is_refused(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        first, second = claim(harness, 2)
        outcome = harness.store.ack([AckReport("a", second.token), AckReport("b", first.token)])
        assert [refused(one).reason for one in outcome] == [LossReason.UNKNOWN, LossReason.UNKNOWN]
        assert [job.state for job in every_job(harness)] == [JobState.LEASED, JobState.LEASED]

    @rule("L2")
    @every_report
    def test_a_report_on_a_job_that_is_not_there_is_refused(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        purge(harness, "job")
        assert REPORTS[verb](harness, lease) == Lost("job", verb, LossReason.UNKNOWN, None, 0)

    @rule("L2", "O1")
    @every_report
    def test_the_holder_of_a_cancelled_job_is_refused(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        cancelled(harness)
        refused(REPORTS[verb](harness, lease), LossReason.CANCELLED)
        assert state_of(harness) is JobState.CANCELLED

    @rule("L2")
    @pytest.mark.parametrize("verb", [verb for verb in REPORTS if verb is not Verb.ACK])
    def test_who_has_acked_can_do_nothing_else(self, harness: Harness, verb: Verb) -> None:
        """004: completed tasks never transition again."""
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.ENDED)
        assert state_of(harness) is JobState.SUCCEEDED

    @rule("L2")
    @pytest.mark.parametrize("verb", [verb for verb in REPORTS if verb is not Verb.NACK])
    def test_who_has_nacked_can_do_nothing_else(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        nacked(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.ENDED)
        assert state_of(harness) is JobState.READY

    @rule("L2")
    @pytest.mark.parametrize("verb", [verb for verb in REPORTS if verb is not Verb.RELEASE])
    def test_who_has_released_can_do_nothing_else(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        released(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.ENDED)
        assert job_of(harness).retries == 0

    @rule("L4", "F3")
    def test_a_refused_nack_costs_no_retry_and_a_refused_commit_leaves_no_result(self, harness: Harness) -> None:
        """004: the report of who lost the authority is not a failure."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US)
        refused(nack(harness, lease, is_permanent=True))
        refused(commit(harness, lease, result=b"1"))
        job = job_of(harness)
        assert (job.state, job.retries, job.expirations, job.result) == (JobState.READY, 0, 0, None)
        assert job.executions[0].error is None
        assert job.executions[0].status is ExecutionStatus.ABORTED

    @rule("L5")
    @every_report
    def test_a_refusal_is_kept_once_for_each_token_and_verb(self, harness: Harness, verb: Verb) -> None:
        """Why did this run twice? The answer is in the data."""
        stale = enqueue_and_claim(harness)
        let_expire(harness, stale)
        claim_one(harness, worker=OTHER)
        for _ in range(3):
            refused(REPORTS[verb](harness, stale))
            harness.clock.advance(us=1)
        job = job_of(harness)
        assert [
            (one.verb, one.token, one.worker, one.attempt, one.current_attempt, one.reason, one.at)
            for one in job.refusals
        ] == [(verb, stale.token, WORKER, 1, 2, LossReason.SUPERSEDED, stale.expires_at)]
        assert job.retries == 0

    @rule("L5")
    def test_refusals_of_different_tokens_and_verbs_are_all_kept(self, harness: Harness) -> None:
        first = enqueue_and_claim(harness)
        expired(harness, first)
        second = claim_one(harness)
        expired(harness, second)
        for lease in (first, second):
            refused(ack(harness, lease))
            refused(extend(harness, lease))
        kept = [(one.verb, one.attempt, one.reason) for one in job_of(harness).refusals]
        assert kept == [
            (Verb.ACK, 1, LossReason.SUPERSEDED),
            (Verb.EXTEND, 1, LossReason.SUPERSEDED),
            (Verb.ACK, 2, LossReason.EXPIRED),
            (Verb.EXTEND, 2, LossReason.EXPIRED),
        ]

    @rule("L5")
    def test_at_most_so_many_refusals_are_kept(self, harness: Harness) -> None:
        enqueue_one(harness)
        reports = [AckReport("job", new_token()) for _ in range(REFUSALS_KEPT + 5)]
        assert {refused(one).reason for one in harness.store.ack(reports)} == {LossReason.UNKNOWN}
        kept = [one.token for one in job_of(harness).refusals]
        assert kept == [report.token for report in reports[:REFUSALS_KEPT]]

    @rule("L6")
    @pytest.mark.parametrize("name", REPEATS)
    def test_a_repeat_after_a_lost_reply_gives_the_same_answer_and_adds_nothing(
        self, harness: Harness, name: str
    ) -> None:
        repeat = REPEATS[name]
        command = repeat.prepare(harness)
        answer = harness.store.run(command)
        before = everything(harness)
        assert harness.store.run(command) == repeat.again(answer)
        assert everything(harness) == before
        opened = StayingOpen(harness)
        opened.clock.advance(us=repeat.later_us)
        assert opened.store.run(command) == repeat.again(answer)
        assert everything(opened) == before

    @rule("L6")
    @pytest.mark.parametrize("verb", [Verb.ACK, Verb.NACK, Verb.RELEASE])
    def test_a_repeat_is_known_after_others_had_the_job(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        first = REPORTS[verb](harness, lease)
        if verb is not Verb.ACK:
            released(harness, claim_one(harness, worker=OTHER))
        before = everything(harness)
        again = REPORTS[verb](harness, lease)
        assert getattr(again, "is_repeat", False)
        assert getattr(first, "state", None) == getattr(again, "state", None)
        assert everything(harness) == before

    @rule("L6", "E6")
    def test_one_report_twice_in_a_batch_is_a_report_and_its_repeat(self, harness: Harness) -> None:
        """The same object, as a caller may build it; not only an equal one."""
        leases = [enqueue_and_claim(harness, job_id) for job_id in ("a", "b", "c")]
        acks, nacks, releases = (
            AckReport("a", leases[0].token),
            NackReport("b", leases[1].token, "broke"),
            ReleaseReport("c", leases[2].token),
        )
        assert [getattr(one, "is_repeat", None) for one in harness.store.ack([acks, acks])] == [False, True]
        assert [getattr(one, "is_repeat", None) for one in harness.store.nack([nacks, nacks])] == [False, True]
        assert [getattr(one, "is_repeat", None) for one in harness.store.release([releases, releases])] == [False, True]

    @rule("L6", "X5")
    def test_ack_after_ones_own_commit_is_right_although_the_lease_ended(self, harness: Harness) -> None:
        """003: after COMMITTED and before DONE, recovery finalizes."""
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        opened = StayingOpen(harness)
        opened.clock.advance(us=LEASE_US)
        assert not acked(opened, lease, b"2").is_repeat
        assert (state_of(opened), job_of(opened).result) == (JobState.SUCCEEDED, b"1")

    @rule("L6", "X5")
    def test_ack_after_ones_own_commit_is_right_although_expiry_finished_the_job(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        assert expired(harness, lease).state is JobState.SUCCEEDED
        before = everything(harness)
        assert acked(harness, lease).is_repeat
        assert everything(harness) == before

    @rule("L6", "X4")
    def test_commit_again_is_a_repeat_after_ack_too(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease, result=b"1")
        acked(harness, lease)
        before = everything(harness)
        assert committed(harness, lease, result=b"1").is_repeat
        assert everything(harness) == before

    @rule("E6", "L4")
    def test_a_batch_of_reports_answers_for_each(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        first, second, third = claim(harness, 3)
        cancelled(harness, "b")
        reports = [AckReport(lease.job.id, lease.token) for lease in (third, second, first, third)]
        answers = harness.store.ack(reports)
        assert [(one.job_id, type(one).__name__, getattr(one, "is_repeat", None)) for one in answers] == [
            ("c", "Acked", False),
            ("b", "Lost", None),
            ("a", "Acked", False),
            ("c", "Acked", True),
        ]

    @rule("E6")
    def test_every_verb_takes_an_empty_batch(self, harness: Harness) -> None:
        store = harness.store
        assert [store.start([]), store.extend([]), store.ack([]), store.nack([]), store.release([])] == [[]] * 5
        assert store.acquire([]) == []

    @rule("E6", "L2")
    def test_every_verb_answers_a_batch_in_order(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        first, second = claim(harness, 2)
        pairs = [("b", second.token), ("none", "x"), ("a", first.token)]
        ids = [job_id for job_id, _ in pairs]
        store = harness.store
        assert [one.job_id for one in store.start([StartReport(*pair) for pair in pairs])] == ids
        assert [one.job_id for one in store.extend([LeaseRef(*pair) for pair in pairs])] == ids
        assert [one.job_id for one in store.nack([NackReport(*pair, "broke") for pair in pairs])] == ids
        pairs = [(lease.job.id, lease.token) for lease in store.claim(WORKER, ["work"], 2)]
        assert [one.job_id for one in store.release([ReleaseReport(*pair) for pair in pairs])] == ["a", "b"]

    @rule("L6")
    def test_a_repeated_nack_returns_the_retry_it_was_given(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        retry_at = harness.clock.now() + 7 * SECOND
        assert nack(harness, lease, delay_us=7 * SECOND) == Nacked("job", JobState.READY, 1, retry_at)
        harness.clock.advance(s=3)
        again = nacked(harness, lease, delay_us=7 * SECOND)
        assert (again.state, again.retries, again.available_at, again.is_repeat) == (JobState.READY, 1, retry_at, True)
        assert job_of(harness).available_at == retry_at

    @rule("L6", "O2")
    def test_an_old_repeat_does_not_undo_a_redrive(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        failed_for_good(harness, lease)
        redrive(harness, "job")
        before = everything(harness)
        assert nacked(harness, lease, is_permanent=True).is_repeat
        assert everything(harness) == before
        assert state_of(harness) is JobState.READY

    @rule("L6", "N11")
    def test_a_kept_failure_repeated_after_its_lease_ended_is_still_known(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        keep(harness, lease, "first")
        expired(harness, lease)
        before = everything(harness)
        again = keep(harness, lease, "first")
        assert isinstance(again, Nacked)
        assert again.is_repeat
        assert everything(harness) == before

    @rule("L2")
    def test_start_and_release_of_a_stale_lease_leave_the_holder_alone(self, harness: Harness) -> None:
        stale = enqueue_and_claim(harness)
        let_expire(harness, stale)
        held = claim_one(harness, worker=OTHER)
        refused(start(harness, stale))
        refused(release(harness, stale))
        assert last_execution(harness).status is ExecutionStatus.LEASED
        started(harness, held)
