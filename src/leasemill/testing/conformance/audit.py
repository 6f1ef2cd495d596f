"""O8: the audit trail, what operators did, with who, when and why."""

from __future__ import annotations

from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import ACTIONS_KEPT, SECOND, Policy, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    cancel,
    enqueue_and_claim,
    failed_for_good,
    redrive,
    resume,
    spec,
)
from leasemill.testing.rules import rule


class Auditing:
    @rule("O8")
    def test_every_act_is_kept_with_who_when_what_and_why(self, harness: Harness) -> None:
        failed_for_good(harness, enqueue_and_claim(harness))
        store = harness.store
        store.pause(QUEUE, by="ann", reason="deploying")
        harness.clock.advance(s=1)
        store.resume(QUEUE, by="bob", reason="deployed")
        store.set_policy(QUEUE, Policy(max_retries=1), by="cyd", reason="too many")
        store.redrive(JobFilter(job_ids=("job",)), by="dee", reason="fixed")
        store.cancel(["job"], by="eve", reason="not wanted")
        store.purge(JobFilter(job_ids=("job",)), by="fay", reason="clean up")
        now = harness.clock.now()
        kept = [(one.at, one.verb, one.by, one.target, one.reason) for one in harness.store.actions()]
        assert kept == [
            (now, Verb.PURGE, "fay", "job", "clean up"),
            (now, Verb.CANCEL, "eve", "job", "not wanted"),
            (now, Verb.REDRIVE, "dee", "job", "fixed"),
            (now, Verb.SET_POLICY, "cyd", QUEUE, "too many"),
            (now, Verb.RESUME, "bob", QUEUE, "deployed"),
            (now - SECOND, Verb.PAUSE, "ann", QUEUE, "deploying"),
        ]
        assert [one.by for one in harness.store.actions(limit=2)] == ["fay", "eve"]

    @rule("O8")
    def test_an_act_that_changes_nothing_is_not_kept(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness))
        resume(harness)
        cancel(harness)
        cancel(harness, "nowhere")
        redrive(harness, "job")
        assert harness.store.actions() == []

    @rule("O8")
    def test_the_latest_acts_are_kept(self, harness: Harness) -> None:
        reasons = [f"reason {number}" for number in range(ACTIONS_KEPT + 10)]
        harness.store.enqueue([spec("job")])
        for number, reason in enumerate(reasons):
            act = harness.store.pause if number % 2 == 0 else harness.store.resume
            act(QUEUE, by=OPERATOR, reason=reason)
        kept = [one.reason for one in harness.store.actions(limit=2 * ACTIONS_KEPT)]
        assert kept == reasons[: -ACTIONS_KEPT - 1 : -1]

    @rule("O8")
    def test_what_is_done_to_many_jobs_is_one_action(self, harness: Harness) -> None:
        store, count = harness.store, ACTIONS_KEPT + 10
        ids = [f"job-{number}" for number in range(count)]
        store.enqueue([spec(job_id) for job_id in ids])
        store.pause(QUEUE, by="ann", reason="deploying")
        began_at = harness.clock.now()
        store.cancel(ids[:500], by=OPERATOR, reason=WHY)
        harness.clock.advance(s=60)
        store.cancel(ids[500:], by=OPERATOR, reason=WHY)
        cancelled, paused = store.actions()
        assert (cancelled.verb, cancelled.by, cancelled.reason) == (Verb.CANCEL, OPERATOR, WHY)
        assert (cancelled.count, cancelled.first_at, cancelled.at) == (count, began_at, harness.clock.now())
        assert list(cancelled.targets) == ids[:20]
        assert (paused.count, paused.first_at, paused.others) == (1, None, ())
        store.redrive(JobFilter(job_ids=tuple(ids)), by=OPERATOR, reason=WHY, limit=count, include_cancelled=True)
        store.cancel(ids, by=OPERATOR, reason=WHY)
        store.purge(JobFilter(job_ids=tuple(ids)), by=OPERATOR, reason=WHY, limit=count)
        verbs = [(one.verb, one.count) for one in store.actions()]
        assert verbs == [(Verb.PURGE, count), (Verb.CANCEL, 2 * count), (Verb.REDRIVE, count), (Verb.PAUSE, 1)]

    @rule("O8")
    def test_an_action_on_a_job_joins_none_of_another_person_reason_or_time(self, harness: Harness) -> None:
        ids = [f"job-{number}" for number in range(6)]
        harness.store.enqueue([spec(job_id) for job_id in ids])
        harness.store.cancel(ids[:1], by=OPERATOR, reason=WHY)
        harness.store.cancel(ids[1:2], by="eve", reason=WHY)
        harness.store.cancel(ids[2:3], by=OPERATOR, reason="another reason")
        harness.clock.advance(s=61)
        harness.store.cancel(ids[3:4], by=OPERATOR, reason=WHY)
        for number in range(10):
            harness.store.pause(f"queue-{number}", by=OPERATOR, reason=WHY)
        harness.store.cancel(ids[4:], by=OPERATOR, reason=WHY)
        found = [one for one in harness.store.actions() if one.verb is Verb.CANCEL]
        assert [one.targets for one in found] == [("job-4", "job-5"), ("job-3",), ("job-2",), ("job-1",), ("job-0",)]
