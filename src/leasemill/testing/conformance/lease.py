"""L: a lease is a permission that time takes back; what comes too late changes nothing and is kept."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.kernel.commands import (
    AckReport,
    AcquireRequest,
    Expiration,
    LeaseRef,
    Lost,
    Nacked,
    NackReport,
    ReleaseReport,
    StartReport,
)
from leasemill.kernel.model import (
    NEVER,
    REFUSALS_KEPT,
    SECOND,
    ExecutionStatus,
    JobState,
    LossReason,
    Policy,
    Verb,
)
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.repeats import REPEATS
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OTHER,
    QUEUE,
    REPORTS,
    WORKER,
    ack,
    acked,
    acquire_one,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    commit,
    committed,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    every_job,
    everything,
    expire,
    expired,
    extend,
    extended,
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


class Leases:
    @rule("L1")
    @every_report
    def test_a_lease_is_held_until_just_before_it_ends(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        assert lease.expires_at == harness.clock.now() + LEASE_US
        harness.clock.advance(us=LEASE_US - 1)
        assert not isinstance(REPORTS[verb](harness, lease), Lost)

    @rule("L3", "L2", "L1")
    @every_report
    def test_an_expired_lease_is_refused_although_nobody_took_the_job(self, harness: Harness, verb: Verb) -> None:
        """004: completion needs a lease that has not expired; 001 and 002 would have taken it by its token."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US)
        lost = refused(REPORTS[verb](harness, lease), LossReason.EXPIRED)
        assert lost == Lost("job", verb, LossReason.EXPIRED, attempt=1, current_attempt=1)
        assert state_of(harness) is JobState.READY
        assert job_of(harness).retries == 0

    @rule("L3", "L8")
    @every_report
    def test_a_lease_once_refused_for_its_age_is_never_revived(self, harness: Harness, verb: Verb) -> None:
        """A clock that steps back does not give a job back to who lost it."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US)
        refused(REPORTS[verb](harness, lease))
        harness.clock.advance(s=-20)
        for report in REPORTS.values():
            refused(report(harness, lease), LossReason.EXPIRED)
        assert claim_one(harness, worker=OTHER).attempt == 2

    @rule("L3", "L8")
    def test_an_expiry_that_was_recorded_holds_when_the_clock_steps_back(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        expired(harness, lease)
        harness.clock.advance(s=-20)
        refused(extend(harness, lease), LossReason.EXPIRED)
        assert claim_one(harness).attempt == 2

    @rule("L8")
    def test_a_clock_that_steps_forward_does_not_stop_time(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1_000_000)
        assert [one.job_id for one in expire(harness)] == ["job"]
        again = claim_one(harness)
        harness.clock.advance(s=-1_000_000)
        assert again.expires_at > harness.clock.now()
        acked(harness, again)
        refused(ack(harness, lease))

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
    @pytest.mark.parametrize("verb", [Verb.START, Verb.EXTEND, Verb.COMMIT, Verb.NACK, Verb.RELEASE])
    def test_who_has_acked_can_do_nothing_else(self, harness: Harness, verb: Verb) -> None:
        """004: completed tasks never transition again."""
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.ENDED)
        assert state_of(harness) is JobState.SUCCEEDED

    @rule("L2")
    @pytest.mark.parametrize("verb", [Verb.START, Verb.EXTEND, Verb.COMMIT, Verb.ACK, Verb.RELEASE])
    def test_who_has_nacked_can_do_nothing_else(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        nacked(harness, lease)
        refused(REPORTS[verb](harness, lease), LossReason.ENDED)
        assert state_of(harness) is JobState.READY

    @rule("L2")
    @pytest.mark.parametrize("verb", [Verb.START, Verb.EXTEND, Verb.COMMIT, Verb.ACK, Verb.NACK])
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

    @rule("L7")
    def test_expire_records_what_time_has_decided(self, harness: Harness) -> None:
        """002: the reaper recovers what is stuck with an expired lease; 004: expiry is a fact of time."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US - 1)
        assert expire(harness) == []
        harness.clock.advance(us=1 + 5 * SECOND)
        (one,) = expire(harness)
        assert (one.job_id, one.worker, one.attempt) == ("job", WORKER, 1)
        assert (one.stuck_us, one.state) == (5 * SECOND, JobState.READY)
        assert last_execution(harness).finished_at == harness.clock.now()
        assert last_execution(harness).expires_at == lease.expires_at
        assert expire(harness) == []

    @rule("L7")
    def test_expire_takes_the_longest_expired_first_and_no_more_than_asked(self, harness: Harness) -> None:
        for seconds in (3, 1, 5, 2, 4):
            enqueue_and_claim(harness, f"job-{seconds}", policy=Policy(lease_ttl_us=seconds * SECOND))
        harness.clock.advance(s=4)
        assert [one.job_id for one in expire(harness, 2)] == ["job-1", "job-2"]
        assert [one.job_id for one in expire(harness, 10)] == ["job-3", "job-4"]
        assert state_of(harness, "job-5") is JobState.LEASED

    @rule("L7")
    def test_a_claim_that_would_give_nothing_records_expiries_first(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, queue="elsewhere")
        let_expire(harness, lease)
        assert claim_ids(harness) == []
        assert state_of(harness) is JobState.READY
        assert expire(harness) == []

    @rule("L7", "C3")
    def test_an_idle_worker_takes_over_what_has_expired_without_a_reaper(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        let_expire(harness, lease)
        (again,) = claim(harness)
        assert (again.job.id, again.attempt) == (lease.job.id, 2)

    @rule("L7")
    def test_a_claim_that_gives_something_leaves_expiries_to_expire(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        opened = StayingOpen(harness)
        let_expire(opened, lease)
        enqueue_one(opened, "other")
        assert claim_ids(opened, limit=5) == ["other"]
        assert state_of(opened) is JobState.LEASED
        assert [one.job_id for one in expire(opened)] == ["job"]

    @rule("L7", "N9")
    def test_expire_leaves_leases_without_end_alone(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        harness.clock.advance(s=1_000_000_000)
        assert expire(harness) == []
        assert extended(harness, lease) == NEVER

    @rule("L7", "L3")
    @pytest.mark.parametrize("recorder", ["expire", "claim", "late report", "acquire"])
    def test_an_expiry_is_reported_to_listeners_whatever_recorded_it(self, harness: Harness, recorder: str) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        acquire_one = AcquireRequest("stream", LANE, 1, WORKER, "token", policy=Policy(lease_ttl_us=LEASE_US))
        if recorder == "acquire":
            acked(harness, lease)
            harness.store.acquire([acquire_one])
        heard: list[Expiration] = []
        store = harness.store
        store.expiries.listen(heard.extend)
        harness.clock.advance(us=LEASE_US + 5)
        match recorder:
            case "expire":
                assert store.expire() == heard
            case "claim":
                assert len(store.claim(WORKER, [QUEUE], 1)) == 1
            case "late report":
                assert isinstance(store.ack([AckReport("job", lease.token)])[0], Lost)
            case _:
                store.acquire([replace(acquire_one, offset=2, token="other")])
        assert heard == [Expiration(heard[0].job_id, WORKER, 1, 5, JobState.READY)]
        assert heard[0].job_id == ("stream/A/1" if recorder == "acquire" else "job")

    @rule("L9")
    def test_extend_gives_a_full_lease_from_now(self, harness: Harness) -> None:
        """001: each heartbeat extends the lease; 004: no state change on the task."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=20)
        until = harness.clock.now() + LEASE_US
        assert extended(harness, lease) == until
        assert last_execution(harness).expires_at == until
        assert state_of(harness) is JobState.LEASED
        harness.clock.advance(us=LEASE_US - 1)
        assert expire(harness) == []
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        harness.clock.advance(us=LEASE_US)
        refused(extend(harness, lease), LossReason.EXPIRED)

    @rule("L9", "L8")
    def test_extend_never_shortens_a_lease(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=-10)
        assert extended(harness, lease) == lease.expires_at
        assert last_execution(harness).expires_at == lease.expires_at

    @rule("L9")
    def test_extend_also_holds_an_execution_that_started_or_committed(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        harness.clock.advance(s=1)
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        committed(harness, lease)
        harness.clock.advance(s=1)
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        assert last_execution(harness).status is ExecutionStatus.COMMITTED

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
    def test_a_repeated_nack_tells_the_retry_it_was_given(self, harness: Harness) -> None:
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
