"""Every situation a job can be in, and its explanation; run on every store."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel.model import ACTIONS_KEPT, SECOND, JobState, OnFailure, Policy
from leasemill.operator.explain import Explanation, Situation, explain
from leasemill.operator.facts import AtWork, gather
from leasemill.operator.wording import instant
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    OTHER,
    QUEUE,
    ack,
    acked,
    acquire_one,
    cancelled,
    claim_one,
    commit,
    committed,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    expired,
    failed_for_good,
    let_expire,
    nacked,
    pause,
    purge,
    redrive,
    released,
    started,
)

BLOCK = Policy(max_retries=0, max_expirations=1, on_failure=OnFailure.BLOCK)
HERE = (AtWork("worker-1", frozenset({QUEUE})),)


def explained(harness: Harness, job_id: str = "job", workers: Sequence[AtWork] | None = HERE) -> Explanation:
    facts = gather(harness.store, job_id, harness.clock.now(), workers)
    assert facts is not None
    explained = explain(facts)
    sentences = [*explained.now, *explained.history]
    assert [one for one in sentences if not one.endswith((".", ":"))] == [], "sentences"
    assert explained.now[0].startswith(f"Job {job_id!r} (")
    return explained


def at(harness: Harness, s: float = 0) -> str:
    return instant(harness.clock.now() + round(s * SECOND))


class ExplainSuite:
    """One test for each situation. A store's tests give the `harness`."""

    # READY

    def test_a_job_that_is_due_waits_for_a_free_worker(self, harness: Harness) -> None:
        enqueue_one(harness)
        since = at(harness)
        harness.clock.advance(s=5)
        found = explained(harness)
        assert (found.state, found.situation, found.history, found.advice) == (JobState.READY, Situation.DUE, [], [])
        assert found.now == [
            "Job 'job' (kind, queue 'work') is READY.",
            f"It has been due since {since} and waits for a free worker.",
            "Its queue is served by worker-1.",
        ]

    def test_a_job_whose_queue_nobody_serves_is_told_so(self, harness: Harness) -> None:
        enqueue_one(harness)
        nobody = explained(harness, workers=())
        assert nobody.situation is Situation.UNSERVED
        assert nobody.now[-1] == "No worker will claim it now: no running worker serves queue 'work'."
        others = explained(harness, workers=[AtWork("b", frozenset({"mail"}))])
        assert others.situation is Situation.UNSERVED
        assert others.now[-1] == "No worker will claim it now: 1 worker is running, but it does not serve queue 'work'."
        assert others.advice == ["leasemill worker MODULE:APP --queue work"]
        assert explained(harness, workers=None).situation is Situation.DUE

    def test_a_job_whose_queue_quiet_workers_serve_says_how_they_are_resumed(self, harness: Harness) -> None:
        enqueue_one(harness)
        quiet = [AtWork(name, frozenset({QUEUE}), is_quiet=True) for name in ("web 1", "web 2")]
        found = explained(harness, workers=quiet)
        assert found.situation is Situation.UNSERVED
        assert found.now[-1] == "No worker will claim it now: those that serve queue 'work' are quiet, web 1, web 2."
        assert found.advice == ["leasemill workers resume 'web 1' --reason …"]
        served = explained(harness, workers=[*quiet, *HERE])
        assert served.situation is Situation.DUE
        assert served.now[-1] == "Its queue is served by worker-1."

    def test_a_job_whose_queue_stopping_workers_serve_says_that_one_is_to_be_started(self, harness: Harness) -> None:
        enqueue_one(harness)
        stopping = AtWork("web-1", frozenset({QUEUE}), is_stopping=True)
        found = explained(harness, workers=[stopping])
        assert found.situation is Situation.UNSERVED
        assert found.now[-1] == "No worker will claim it now: those that serve queue 'work' are stopping, web-1."
        assert found.advice == ["leasemill worker MODULE:APP --queue work"]
        quiet = AtWork("web-2", frozenset({QUEUE}), is_quiet=True)
        mixed = explained(harness, workers=[stopping, quiet])
        assert mixed.now[-1].endswith("those that serve queue 'work' are quiet or stopping, web-1, web-2.")
        assert mixed.advice == ["leasemill workers resume web-2 --reason …"]
        assert explained(harness, workers=[stopping, quiet, *HERE]).now[-1] == "Its queue is served by worker-1."

    def test_a_job_for_later_says_when(self, harness: Harness) -> None:
        enqueue_one(harness, delay_us=60 * SECOND)
        found = explained(harness)
        assert found.situation is Situation.NOT_DUE
        assert found.now[1] == f"It is scheduled: not due until {at(harness, 60)} (in 1.0 min)."

    def test_a_job_that_failed_waits_for_its_retry(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        nacked(harness, lease, "ConnectionError: no route\n  File …", delay_us=10 * SECOND)
        found = explained(harness)
        assert found.situation is Situation.RETRY
        assert found.now[1] == (
            f"It waits for retry 1 of 3 until {at(harness, 10)} (in 10.0 s). The last error: ConnectionError: no route."
        )
        assert found.history == [f"Attempt 1 (worker worker-1): failed at {at(harness)} (ConnectionError: no route)."]

    def test_a_job_whose_handler_gave_it_back_says_until_when(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        released(harness, lease, delay_us=30 * SECOND)
        found = explained(harness)
        assert found.situation is Situation.GIVEN_BACK
        assert found.now[1] == f"Its handler released it: it is not due until {at(harness, 30)} (in 30.0 s)."

    def test_a_job_that_does_not_match_the_workers_code_says_since_when_and_why(self, harness: Harness) -> None:
        enqueue_one(harness)
        first = instant(harness.clock.now())
        for worker in ("old-1", "old-2", "old-1"):
            lease = claim_one(harness, worker=worker)
            released(harness, lease, delay_us=SECOND, error="Mismatch: no handler for kind 'kind'; after 1 h it fails")
            harness.clock.advance(s=1)
        found = explained(harness)
        assert found.situation is Situation.MISMATCH
        assert found.now[1] == (
            "It does not match the code of the workers that claimed it: no handler for kind 'kind'; after 1 h it fails."
        )
        assert found.now[2] == (
            f"2 workers tried, 3 times in total, first at {first}. "
            f"It has been due since {at(harness, 0)} and waits for a free worker."
        )
        assert found.advice == ["Run a worker whose code has kind 'kind' with these arguments, or cancel the job."]
        assert (
            "(Mismatch: no handler for kind 'kind'; after 1 h it fails), which does not count as a failure"
            in found.history[1]
        )
        harness.clock.advance(s=-1)
        found = explained(harness)
        assert found.situation is Situation.MISMATCH
        assert found.now[2].endswith(f"It is not due again until {at(harness, 1)} (in 1.0 s).")

    def test_a_job_that_did_not_match_for_too_long_says_so(self, harness: Harness) -> None:
        enqueue_one(harness)
        failed_for_good(harness, claim_one(harness), "Mismatch: no handler for kind 'kind'")
        found = explained(harness)
        assert found.situation is Situation.FAILED
        assert "no worker's code had matched it within the mismatch timeout" in found.now[1]
        assert found.now[2] == "The error: Mismatch: no handler for kind 'kind'."

    def test_a_job_whose_result_cannot_be_kept_is_not_said_to_have_given_up(self, harness: Harness) -> None:
        enqueue_one(harness)
        failed_for_good(harness, claim_one(harness), "InvalidResult: kind returned a str")
        assert (
            explained(harness)
            .now[1]
            .endswith("an invalid result is final: its handler had run, so it is not run again.")
        )

    def test_a_job_given_back_without_a_reason_is_not_a_mismatch(self, harness: Harness) -> None:
        enqueue_one(harness)
        released(harness, claim_one(harness), delay_us=SECOND)
        assert explained(harness).situation is Situation.GIVEN_BACK

    def test_a_paused_queue_says_who_paused_it_and_why(self, harness: Harness) -> None:
        enqueue_one(harness)
        pause(harness)
        found = explained(harness)
        assert found.situation is Situation.PAUSED
        assert found.now[1] == (
            f"Queue 'work' was paused at {at(harness)} by ada (because): no worker claims its jobs until it is resumed."
        )
        assert found.advice == ["leasemill queues resume work --reason …"]

    def test_a_paused_queue_does_not_hide_what_else_holds_a_job_up(self, harness: Harness) -> None:
        enqueue_one(harness, delay_us=SECOND)
        pause(harness)
        assert f"not due until {at(harness, 1)}" in explained(harness).now[2]

    def test_an_offset_waits_for_its_owner(self, harness: Harness) -> None:
        lease = acquire_one(harness, 7)
        released(harness, lease)
        found = explained(harness, lease.job.id)
        assert found.situation is Situation.WAITS_FOR_OWNER
        assert "used with acquire: no worker claims from it" in found.now[1]

    # READY, in a lane

    def test_behind_a_head_that_runs(self, harness: Harness) -> None:
        enqueue_many(harness, "head", "job", lane=LANE)
        started(harness, claim_one(harness))
        found = explained(harness)
        assert found.situation is Situation.BEHIND
        assert found.now == [
            "Job 'job' (kind, queue 'work', lane 'A') is READY.",
            f"It waits in its lane behind 'head', which worker worker-1 has held since {at(harness)}.",
        ]
        assert found.advice == ["leasemill jobs explain head"]

    def test_behind_a_head_that_waits_for_its_retry(self, harness: Harness) -> None:
        enqueue_many(harness, "head", "job", lane=LANE)
        nacked(harness, claim_one(harness), delay_us=10 * SECOND)
        assert (
            f"behind 'head', which waits for its retry until {at(harness, 10)} (in 10.0 s)" in explained(harness).now[1]
        )

    def test_behind_a_head_that_is_not_due(self, harness: Harness) -> None:
        enqueue_one(harness, "head", lane=LANE, delay_us=10 * SECOND)
        enqueue_one(harness, lane=LANE)
        assert f"behind 'head', which is not due until {at(harness, 10)} (in 10.0 s)" in explained(harness).now[1]

    def test_behind_a_head_that_is_due_itself(self, harness: Harness) -> None:
        enqueue_many(harness, "head", "job", lane=LANE)
        released(harness, claim_one(harness))
        assert f"which has been due since {at(harness)} and waits for a worker" in explained(harness).now[1]

    def test_behind_a_head_that_failed_and_blocks(self, harness: Harness) -> None:
        enqueue_one(harness, "head", lane="a b", policy=BLOCK)
        enqueue_one(harness, lane="a b")
        nacked(harness, claim_one(harness), "ValueError: no")
        since = at(harness)
        harness.clock.advance(s=60)
        found = explained(harness)
        assert found.situation is Situation.BEHIND
        assert f"which failed for good at {since} and blocks the lane until an operator acts" in found.now[1]
        assert found.advice == ["leasemill lanes unblock work 'a b' --how redrive|cancel|purge --reason …"]
        head = explained(harness, "head")
        assert head.now[2] == "It blocks lane 'a b' until an operator acts; 1 job behind it."
        assert head.advice == found.advice

    def test_behind_a_head_that_was_quarantined_and_blocks(self, harness: Harness) -> None:
        enqueue_one(harness, "head", lane=LANE, policy=BLOCK)
        enqueue_one(harness, lane=LANE)
        lease = claim_one(harness)
        started(harness, lease)
        expired(harness, lease)
        assert f"which was quarantined at {at(harness)} and blocks the lane" in explained(harness).now[1]

    # LEASED

    def test_a_leased_job_says_by_whom_and_until_when(self, harness: Harness) -> None:
        enqueue_and_claim(harness)
        found = explained(harness)
        assert (found.state, found.situation) == (JobState.LEASED, Situation.LEASED)
        since = at(harness)
        assert found.now[1:] == [
            f"Worker worker-1 has held it as attempt 1 since {since}; its handler is not recorded as started yet.",
            f"Its lease expires at {at(harness, 30)} (in 30.0 s) unless a heartbeat extends it.",
        ]

    def test_a_running_job_says_since_when(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1)
        started(harness, lease)
        found = explained(harness)
        assert found.situation is Situation.RUNNING
        assert f"its handler started at {at(harness)}." in found.now[1]

    def test_a_worker_that_was_not_heard_of_is_named(self, harness: Harness) -> None:
        started(harness, enqueue_and_claim(harness))
        assert explained(harness).now[-1].startswith("Its lease expires at")
        assert explained(harness, workers=()).now[-1] == (
            "Worker worker-1 has sent no heartbeat lately: it may be dead or stopped."
        )

    def test_a_lease_that_ran_out_and_nobody_noticed_yet(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        let_expire(harness, lease)
        found = explained(harness)
        assert found.situation is Situation.EXPIRED
        assert found.now[2] == f"Its lease expired at {at(harness)}: any worker can claim it now."

    def test_committed_and_not_reported(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        found = explained(harness)
        assert found.situation is Situation.COMMITTED
        assert found.now[2] == (
            f"It committed at {at(harness)}; only its end is not reported yet. "
            "It can only succeed now, and is not run again."
        )
        let_expire(harness, lease)
        late = explained(harness)
        assert late.situation is Situation.COMMITTED
        assert late.now[3].endswith("the next search for expired leases records it as succeeded.")

    def test_a_lease_without_end(self, harness: Harness) -> None:
        lease = acquire_one(harness, 7)
        assert explained(harness, lease.job.id, workers=()).now[-1] == (
            "Its lease never expires: it is held until its owner reports."
        )

    # The ends

    def test_succeeded(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness))
        found = explained(harness)
        assert (found.state, found.situation, found.history) == (JobState.SUCCEEDED, Situation.SUCCEEDED, [])
        assert found.now[1] == (
            f"Attempt 1 by worker worker-1 took effect at {at(harness)} and reported its end at {at(harness)}."
        )

    def test_succeeded_although_its_worker_died_after_the_commit(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        committed(harness, lease)
        then = at(harness)
        expired(harness, lease)
        assert explained(harness).now[1] == (
            f"Attempt 1 by worker worker-1 took effect at {then}; its end was never reported, so the job was finished "
            f"at {at(harness)}, after its lease had expired."
        )

    def test_succeeded_although_the_handler_failed_or_was_cancelled_after_the_commit(self, harness: Harness) -> None:
        first = enqueue_and_claim(harness, "first")
        committed(harness, first)
        nacked(harness, first, "OSError: disk full")
        second = enqueue_and_claim(harness, "second")
        committed(harness, second)
        cancelled(harness, "second")
        third = enqueue_and_claim(harness, "third")
        committed(harness, third)
        released(harness, third)
        assert "failed after that (OSError: disk full), which changed nothing" in explained(harness, "first").now[1]
        assert "an operator cancelled it at" in explained(harness, "second").now[1]
        assert "it was released at" in explained(harness, "third").now[1]

    def test_failed_when_its_retries_were_used_up(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_retries=1))
        for number in (1, 2):
            nacked(harness, claim_one(harness), f"ValueError: {number}", delay_us=0)
        found = explained(harness)
        assert (found.state, found.situation) == (JobState.FAILED, Situation.FAILED)
        assert found.now[1:] == [
            f"Attempt 2 by worker worker-1 failed at {at(harness)}, and its 1 retry was used up.",
            "The error: ValueError: 2.",
        ]
        assert found.history[0] == "It has been claimed twice; none has taken effect."
        assert "(ValueError: 1), then worker worker-1 claimed it as attempt 2." in found.history[1]
        assert found.advice == ["leasemill jobs redrive --id job --reason …"]

    def test_failed_because_the_handler_said_never(self, harness: Harness) -> None:
        nacked(harness, enqueue_and_claim(harness), "Fail: no address", is_permanent=True)
        assert "and its handler reported that it can never succeed." in explained(harness).now[1]

    def test_failed_because_its_error_is_not_retried(self, harness: Harness) -> None:
        nacked(harness, enqueue_and_claim(harness), "KeyError: 'x'", is_permanent=True)
        assert "no retry was allowed: by its handler, or by the declaration of its kind" in explained(harness).now[1]

    def test_quarantined(self, harness: Harness) -> None:
        enqueue_one(harness, policy=Policy(max_expirations=2))
        for _ in range(2):
            lease = claim_one(harness)
            started(harness, lease)
            expired(harness, lease)
        found = explained(harness)
        assert (found.state, found.situation) == (JobState.DEAD, Situation.QUARANTINED)
        assert found.now[1].startswith(f"It was quarantined at {at(harness)}: 2 runs ended without a report")

    def test_cancelled_by_whom_and_why(self, harness: Harness) -> None:
        started(harness, enqueue_and_claim(harness))
        cancelled(harness)
        found = explained(harness)
        assert (found.state, found.situation) == (JobState.CANCELLED, Situation.CANCELLED)
        assert found.now[1] == f"ada cancelled it at {at(harness)}: because."
        assert found.advice == ["leasemill jobs redrive --id job --include-cancelled --reason …"]

    def test_a_redriven_job_still_names_who_cancelled_it(self, harness: Harness) -> None:
        enqueue_one(harness)
        cancelled(harness)
        cancelled_at = at(harness)
        redrive(harness, "job", include_cancelled=True)
        found = explained(harness)
        assert found.state is JobState.READY
        assert f"ada cancelled it at {cancelled_at}: because." in found.history

    def test_an_act_that_is_not_kept_any_more_is_not_made_up(self, harness: Harness) -> None:
        failed_for_good(harness, enqueue_and_claim(harness, "redriven"))
        redrive(harness, "redriven")
        for number in range(ACTIONS_KEPT // 2):
            harness.store.pause(QUEUE, by="eve", reason=f"tidying up {number}")
            harness.store.resume(QUEUE, by="eve", reason=f"tidied up {number}")
        assert explained(harness, "redriven").history[-1] == (
            "An operator redrove it after attempt 1; who and why are no longer recorded."
        )

    # Why it ran twice

    def test_expired_and_run_again(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        let_expire(harness, lease)
        acked(harness, claim_one(harness, worker=OTHER))
        found = explained(harness)
        assert found.situation is Situation.SUCCEEDED
        runs, first = found.history
        assert runs == "It has been claimed twice; only attempt 2 took effect."
        assert first == (
            f"Attempt 1 (worker worker-1): its lease expired while it ran, noticed at {at(harness)}; the worker had "
            "died, stalled or lost its connection, then worker worker-2 claimed it as attempt 2."
        )

    def test_expired_before_its_handler_was_recorded_as_begun(self, harness: Harness) -> None:
        expired(harness, enqueue_and_claim(harness))
        assert "its lease expired before its handler was recorded as started" in explained(harness).history[0]

    def test_a_zombie_that_reported_too_late(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        let_expire(harness, lease)
        acked(harness, claim_one(harness, worker=OTHER))
        commit(harness, lease)
        ack(harness, lease)
        assert explained(harness).history[2:] == [
            f"Worker worker-1 reported {verb} for attempt 1 too late, at {at(harness)}, when attempt 2 was the latest "
            "(lease superseded): it was refused and changed nothing."
            for verb in ("commit", "ack")
        ]

    def test_taken_away_by_a_cancel_and_redriven(self, harness: Harness) -> None:
        started(harness, enqueue_and_claim(harness))
        cancelled(harness)
        redrive(harness, "job", include_cancelled=True)
        acked(harness, claim_one(harness, worker=OTHER))
        history = explained(harness).history
        assert "cancelled by an operator at" in history[1]
        assert history[-1] == f"ada redrove it at {at(harness)}: because."

    def test_a_redriven_job_that_waits_is_due_and_says_who_redrove_it(self, harness: Harness) -> None:
        failed_for_good(harness, enqueue_and_claim(harness))
        redrive(harness, "job")
        found = explained(harness)
        assert (found.state, found.situation) == (JobState.READY, Situation.DUE)
        assert found.history[-1] == f"ada redrove it at {at(harness)}: because."

    def test_a_long_history_is_told_in_short(self, harness: Harness) -> None:
        enqueue_one(harness)
        for _ in range(120):
            released(harness, claim_one(harness))
        found = explained(harness)
        assert found.history[0] == (
            "It has been claimed 120 times (20 of them are no longer recorded); none has taken effect."
        )
        assert found.history[1].startswith("Attempt 1 (worker worker-1): released at")
        assert found.history[2] == "90 more attempts; the latest 9:"
        assert found.history[-1].startswith("Attempt 120 ")
        assert len(found.history) == 12

    def test_an_unknown_id_has_no_facts(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness))
        purge(harness, "job")
        assert gather(harness.store, "job", harness.clock.now()) is None
        assert gather(harness.store, "never was", harness.clock.now()) is None
