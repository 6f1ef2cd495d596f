"""U1, U4, U5, U8, U10: a unique key belongs to its queue. However a job with a key comes to be, it leaves the jobs of
other queues alone: it is neither merged with one of them nor replaces its arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from leasemill.kernel.commands import Backfill, Enqueue, Enqueued, FireNow, HeldBack, JobFilter, KeyView, Merged
from leasemill.kernel.model import SECOND, ChainedJob, Job, JobSpec, Rules, UniqueKey, UniqueUntil
from leasemill.testing.conformance.group_steps import GROUP, create, seal
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.schedule_steps import MINUTE, NOON, every_minute, fire_next, set_schedule
from leasemill.testing.conformance.steps import (
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    acquire_one,
    claim_one,
    committed,
    enqueue,
    enqueue_one,
    every_job,
    expect,
    failed_for_good,
    job_of,
    only,
    purge,
    redrive,
    spec,
)
from leasemill.testing.conformance.unique_steps import KEEP_US, enqueued, follow_up, merged_with, unique
from leasemill.testing.rules import rule

ELSEWHERE = "elsewhere"
HIDDEN = b'{"of":"ours"}'

UNIQUES: dict[str, UniqueKey] = {
    "until ended": UniqueKey("key"),
    "until started": UniqueKey("key", UniqueUntil.STARTED),
    "kept": UniqueKey("key", keep_us=KEEP_US),
    "debounced": UniqueKey("key", UniqueUntil.STARTED, at_most_us=KEEP_US),
    "throttled": UniqueKey("key", UniqueUntil.STARTED, keep_us=KEEP_US),
    "throttled, with a trailing job": UniqueKey("key", UniqueUntil.STARTED, keep_us=KEEP_US, is_trailing=True),
}


def job_with(key: UniqueKey, job_id: str, **fields: str | bytes) -> JobSpec:
    return spec(job_id, delay_us=60 * SECOND if key.at_most_us else 0, rules=Rules(key), **fields)


def as_chained(job: JobSpec) -> ChainedJob:
    assert job.rules is not None
    return ChainedJob(job.queue, job.kind, job.payload, delay_us=job.delay_us, unique=job.rules.unique)


# Every way a job comes to be; each returns the new job's id.


def enqueued_by_id(harness: Harness, job: JobSpec) -> str:
    enqueued(harness, job)
    return job.id


def enqueued_with_a_new_id(harness: Harness, job: JobSpec) -> str:
    return expect(Enqueued, only(harness.store.run(Enqueue([job], are_new=True)))).job_id


def enqueued_in_a_batch(harness: Harness, job: JobSpec) -> str:
    others = [spec("plain", queue="third"), replace(job, id="other", queue="third")]
    outcomes = harness.store.enqueue([others[0], job, others[1]])
    assert outcomes == [Enqueued("plain"), Enqueued(job.id), Enqueued("other")]
    return job.id


def enqueued_by_a_commit(harness: Harness, job: JobSpec) -> str:
    enqueue_one(harness, "parent", queue="parents")
    lease = claim_one(harness, queue="parents")
    other = replace(job, queue="third")
    made = committed(harness, lease, followups=[follow_up(other), follow_up(job)]).followup_ids
    assert made == ("parent/0", "parent/1")
    acked(harness, lease)
    return made[1]


def enqueued_by_the_commit_of_an_acquired_job(harness: Harness, job: JobSpec) -> str:
    lease = acquire_one(harness, 1)
    (made,) = committed(harness, lease, followups=[follow_up(job)]).followup_ids
    return made


def chained(harness: Harness, job: JobSpec) -> str:
    enqueue_one(harness, "parent", queue="parents", rules=Rules(chain=(as_chained(job),)))
    acked(harness, claim_one(harness, queue="parents"))
    return "parent/then"


def enqueued_by_the_success_of_a_group(harness: Harness, job: JobSpec) -> str:
    create(harness, then=as_chained(job), on_end=None)
    seal(harness)
    return f"{GROUP}/then"


def enqueued_by_the_end_of_a_group(harness: Harness, job: JobSpec) -> str:
    create(harness, then=None, on_end=as_chained(job))
    seal(harness)
    return f"{GROUP}/end"


def enqueued_by_a_tick(harness: Harness, job: JobSpec) -> str:
    set_schedule(harness, every_minute(call=called(job)))
    (made,) = fire_next(harness).job_ids
    return follow_call(harness, job, made)


def enqueued_by_hand(harness: Harness, job: JobSpec) -> str:
    set_schedule(harness, every_minute(call=called(job)))
    fired = expect(Enqueued, harness.store.run(FireNow("tidy", NOON, OPERATOR, WHY)))
    return follow_call(harness, job, fired.job_id)


def backfilled(harness: Harness, job: JobSpec) -> str:
    set_schedule(harness, every_minute(call=called(job)))
    (outcome,) = expect(list, harness.store.run(Backfill("tidy", (NOON - MINUTE,), OPERATOR, WHY)))
    return follow_call(harness, job, expect(Enqueued, outcome).job_id)


def called(job: JobSpec) -> JobSpec:
    """The call of a schedule has no delay, so a debounced job is chained to it."""
    if not job.delay_us:
        return replace(job, id="")
    return spec("", queue="parents", rules=Rules(chain=(as_chained(job),)))


def follow_call(harness: Harness, job: JobSpec, made: str) -> str:
    if not job.delay_us:
        return made
    acked(harness, claim_one(harness, queue="parents"))
    return f"{made}/then"


WAYS: dict[str, Callable[[Harness, JobSpec], str]] = {
    one.__name__: one
    for one in (
        enqueued_by_id,
        enqueued_with_a_new_id,
        enqueued_in_a_batch,
        enqueued_by_a_commit,
        enqueued_by_the_commit_of_an_acquired_job,
        chained,
        enqueued_by_the_success_of_a_group,
        enqueued_by_the_end_of_a_group,
        enqueued_by_a_tick,
        enqueued_by_hand,
        backfilled,
    )
}


def holds_its_own_key(harness: Harness, job: Job) -> None:
    found = harness.store.key(job.spec.queue, "key")
    assert found is not None
    assert (found.queue, found.key, found.job_id) == (job.spec.queue, "key", job.spec.id)


class QueueIsolation:
    @rule("U1", "U5", "U8", "U10")
    @pytest.mark.parametrize("held", UNIQUES)
    @pytest.mark.parametrize("way", WAYS)
    def test_a_job_leaves_the_holder_of_its_key_in_another_queue_alone(
        self, harness: Harness, way: str, held: str
    ) -> None:
        key = UNIQUES[held]
        enqueued(harness, job_with(key, "victim", queue=ELSEWHERE))
        before = job_of(harness, "victim")
        harness.clock.advance(us=SECOND)
        made = job_of(harness, WAYS[way](harness, job_with(key, "ours", payload=HIDDEN)))
        assert job_of(harness, "victim") == before
        assert (made.spec.queue, made.spec.payload, made.spec.run_at) == (QUEUE, HIDDEN, None)
        harness.reopen()
        for job in (before, made):
            holds_its_own_key(harness, job)

    @rule("U8", "U10")
    @pytest.mark.parametrize("held", ["debounced", "throttled, with a trailing job"])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_call_replaces_the_waiting_job_of_its_own_queue_only(self, harness: Harness, way: str, held: str) -> None:
        """The one of the other queue waits under the same key, with the same kind, and may be replaced as well."""
        key = UNIQUES[held]
        made = WAYS[way](harness, job_with(key, "ours"))
        enqueued(harness, job_with(key, "victim", queue=ELSEWHERE))
        if key.is_trailing:  # of each queue one that waits for the end of the time
            enqueued(harness, job_with(key, "ours-2"))
            enqueued(harness, job_with(key, "victim-2", queue=ELSEWHERE))
        victims = [job for job in every_job(harness) if job.spec.queue == ELSEWHERE]
        waiting = "ours-2" if key.is_trailing else made
        harness.clock.advance(us=SECOND)
        assert enqueue(harness, job_with(key, "late", payload=HIDDEN)) == Merged(waiting, is_replaced=True)
        assert job_of(harness, waiting).spec.payload == HIDDEN
        assert [job for job in every_job(harness) if job.spec.queue == ELSEWHERE] == victims

    @rule("U4")
    def test_a_redrive_looks_at_the_key_of_its_queue_only(self, harness: Harness) -> None:
        enqueued(harness, unique("ours"))
        failed_for_good(harness, claim_one(harness))
        enqueued(harness, unique("victim", queue=ELSEWHERE))
        before = job_of(harness, "victim")
        assert redrive(harness, "ours").job_ids == ("ours",)
        assert job_of(harness, "victim") == before
        assert merged_with(harness, unique("third")) == "ours"
        assert merged_with(harness, unique("third", queue=ELSEWHERE)) == "victim"

    @rule("U4", "E6")
    def test_of_failed_jobs_with_one_key_the_first_of_each_queue_is_redriven(self, harness: Harness) -> None:
        for queue in (QUEUE, ELSEWHERE):
            for number in (1, 2):
                enqueued(harness, unique(f"{queue}-{number}", queue=queue))
                failed_for_good(harness, claim_one(harness, queue=queue))
        outcome = harness.store.redrive(JobFilter(), by=OPERATOR, reason=WHY, limit=10)
        assert sorted(outcome.job_ids) == [f"{ELSEWHERE}-1", f"{QUEUE}-1"]
        held_back = {HeldBack(f"{queue}-2", f"{queue}-1") for queue in (QUEUE, ELSEWHERE)}
        assert set(outcome.held_back) == held_back

    @rule("U1", "U3", "U6")
    def test_a_key_that_is_let_go_in_one_queue_is_held_in_the_other(self, harness: Harness) -> None:
        enqueued(harness, unique("ours", keep_us=KEEP_US))
        enqueued(harness, unique("victim", queue=ELSEWHERE, keep_us=2 * KEEP_US))
        until = harness.clock.now() + 2 * KEEP_US
        for job_id, queue in (("ours", QUEUE), ("victim", ELSEWHERE)):
            failed_for_good(harness, claim_one(harness, queue=queue))
            purge(harness, job_id)
        harness.reopen()
        harness.clock.advance(us=KEEP_US)
        assert harness.store.key(QUEUE, "key") is None
        assert harness.store.key(ELSEWHERE, "key") == KeyView(ELSEWHERE, "key", "victim", until)
        enqueued(harness, unique("next"))
        assert merged_with(harness, unique("third", queue=ELSEWHERE)) == "victim"
