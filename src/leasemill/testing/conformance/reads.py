"""Reading: bounded, in order, and always a copy."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import JobFilter, QueueView
from leasemill.kernel.model import SECOND, JobState, OnFailure, Policy, QueueMode
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.steps import (
    LANE,
    OFFSETS,
    QUEUE,
    acked,
    acquire,
    acquire_one,
    cancelled,
    claim,
    claim_one,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    every_job,
    expired,
    failed_for_good,
    job_of,
    nacked,
    pause,
    set_policy,
    spec,
    started,
    state_of,
)
from leasemill.testing.rules import rule

FILTERS = {
    "nothing": (JobFilter(), ["failed", "cancelled", "leased", "ready", "elsewhere"]),
    "ids": (JobFilter(job_ids=("ready", "failed", "nowhere")), ["failed", "ready"]),
    "no id": (JobFilter(job_ids=()), []),
    "queue": (JobFilter(queue="other"), ["elsewhere"]),
    "kind": (JobFilter(kind="mail"), ["failed", "leased"]),
    "lane": (JobFilter(lane=LANE), ["ready"]),
    "state": (JobFilter(states=frozenset({JobState.FAILED})), ["failed"]),
    "states": (JobFilter(states=frozenset({JobState.READY, JobState.CANCELLED})), ["cancelled", "ready", "elsewhere"]),
    "no state": (JobFilter(states=frozenset()), []),
    "error": (JobFilter(error_contains="roke"), ["failed"]),
    "error is not a pattern": (JobFilter(error_contains="%"), []),
    "both": (JobFilter(kind="mail", states=frozenset({JobState.LEASED})), ["leased"]),
}


class Reading:
    @rule("O6")
    def test_a_job_that_is_not_there_is_none(self, harness: Harness) -> None:
        assert harness.store.job("nowhere") is None

    @rule("O6")
    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
    def test_jobs_are_read_page_by_page_each_once_and_in_order(self, harness: Harness, limit: int) -> None:
        ids = ["e", "a", "d", "b", "c"]
        enqueue_many(harness, *ids)
        assert [job.spec.id for job in every_job(harness, limit=limit)] == ids

    @rule("O6")
    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
    def test_jobs_are_read_newest_first_page_by_page_each_once(self, harness: Harness, limit: int) -> None:
        ids = ["e", "a", "d", "b", "c"]
        enqueue_many(harness, *ids)
        enqueue_one(harness, "elsewhere", queue="other")
        failed_for_good(harness, claim_one(harness), "it broke")
        assert _newest_first(harness, JobFilter(), limit) == ["elsewhere", "c", "b", "d", "a", "e"]
        assert _newest_first(harness, JobFilter(queue=QUEUE), limit) == ["c", "b", "d", "a", "e"]
        assert _newest_first(harness, JobFilter(states=frozenset({JobState.FAILED})), limit) == ["e"]
        assert _newest_first(harness, JobFilter(job_ids=("a", "b", "nothing")), limit) == ["b", "a"]

    @rule("O6")
    def test_a_reading_newest_first_goes_on_while_jobs_come_and_go(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c", "d")
        page = harness.store.jobs(limit=2, newest_first=True)
        assert [job.spec.id for job in page.jobs] == ["d", "c"]
        assert page.after is not None
        enqueue_one(harness, "e")
        rest = harness.store.jobs(limit=100, after=page.after, newest_first=True)
        assert ([job.spec.id for job in rest.jobs], rest.after) == (["b", "a"], None)

    @rule("O6")
    def test_a_redriven_job_is_listed_where_its_new_number_puts_it(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        failed_for_good(harness, claim_one(harness), "it broke")
        harness.store.redrive(JobFilter(job_ids=("a",)), by="ann", reason="mended")
        oldest_first = [job.spec.id for job in every_job(harness)]
        assert _newest_first(harness, JobFilter(), 1) == oldest_first[::-1]

    @rule("O6")
    def test_a_reading_goes_on_while_jobs_come_and_go(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c", "d")
        page = harness.store.jobs(limit=2)
        assert [job.spec.id for job in page.jobs] == ["a", "b"]
        assert page.after is not None
        cancelled(harness, "b")
        enqueue_one(harness, "e")
        rest = harness.store.jobs(limit=100, after=page.after)
        assert [job.spec.id for job in rest.jobs] == ["c", "d", "e"]

    @rule("O6")
    @pytest.mark.parametrize("name", FILTERS)
    def test_every_field_of_a_filter_narrows(self, harness: Harness, name: str) -> None:
        failed_for_good(harness, enqueue_and_claim(harness, "failed", kind="mail"), "it broke")
        enqueue_one(harness, "cancelled")
        cancelled(harness, "cancelled")
        enqueue_and_claim(harness, "leased", kind="mail")
        enqueue_one(harness, "ready", lane=LANE)
        enqueue_one(harness, "elsewhere", queue="other")
        where, expected = FILTERS[name]
        assert [job.spec.id for job in every_job(harness, where)] == expected
        assert [job.spec.id for job in every_job(harness, where, limit=1)] == expected

    @rule("O6")
    def test_a_filter_narrows_by_the_latest_error(self, harness: Harness) -> None:
        nacked(harness, enqueue_and_claim(harness), "first")
        nacked(harness, claim_one(harness), "second")
        claim_one(harness)
        assert every_job(harness, JobFilter(error_contains="first")) == []
        assert len(every_job(harness, JobFilter(error_contains="second"))) == 1

    @rule("O6", "I4")
    def test_a_filter_narrows_by_the_time_of_the_last_change(self, harness: Harness) -> None:
        begun = harness.clock.now()
        enqueue_one(harness, "old")
        harness.clock.advance(s=1)
        enqueue_one(harness, "new")
        harness.clock.advance(s=1)
        before = JobFilter(updated_before=begun + SECOND)
        after = JobFilter(updated_after=begun + SECOND)
        assert [job.spec.id for job in every_job(harness, before)] == ["old"]
        assert [job.spec.id for job in every_job(harness, after)] == ["new"]
        cancelled(harness, "old")
        assert [job.spec.id for job in every_job(harness, before)] == []

    @rule("O6")
    def test_queues_are_read_by_name(self, harness: Harness) -> None:
        for queue in ("c", "a", "b"):
            enqueue_one(harness, f"job-{queue}", queue=queue)
        assert [view.name for view in harness.store.queues()] == ["a", "b", "c"]
        assert [view.name for view in harness.store.queues(limit=2)] == ["a", "b"]
        assert [view.name for view in harness.store.queues(limit=2, after="b")] == ["c"]

    @rule("X2")
    def test_a_queue_counts_its_jobs_by_state(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness, "succeeded"))
        failed_for_good(harness, enqueue_and_claim(harness, "failed"))
        enqueue_one(harness, "cancelled")
        cancelled(harness, "cancelled")
        dead = enqueue_and_claim(harness, "dead", policy=Policy(max_expirations=1))
        started(harness, dead)
        expired(harness, dead)
        enqueue_and_claim(harness, "leased")
        begun = harness.clock.now()
        enqueue_one(harness, "ready", delay_us=5)
        enqueue_one(harness, "also ready", delay_us=3, priority=9)
        pause(harness)
        set_policy(harness, Policy(max_retries=2))
        ready = {JobState.READY: 2}
        assert harness.store.queues() == [
            QueueView(
                QUEUE,
                QueueMode.CLAIM,
                is_paused=True,
                policy=Policy(max_retries=2),
                counts=dict.fromkeys(JobState, 1) | ready,
                oldest_available_at=begun + 3,
            )
        ]

    @rule("O6")
    def test_how_long_a_queues_first_job_has_been_due_is_by_the_stores_time(self, harness: Harness) -> None:
        enqueue_one(harness, "later", delay_us=9 * SECOND)
        enqueue_one(harness, "sooner", delay_us=3 * SECOND)
        harness.clock.advance(s=5)
        (view,) = harness.store.queues()
        assert view.oldest_available_at is not None
        assert harness.store.time() - view.oldest_available_at == 2 * SECOND

    @rule("X2", "I3")
    def test_totals_are_over_all_queues(self, harness: Harness) -> None:
        empty = harness.store.totals()
        assert set(empty.counts) == set(JobState)
        assert (set(empty.counts.values()), empty.timed_leases, empty.next_expiry_at) == ({0}, 0, None)
        enqueue_many(harness, "a", "b")
        enqueue_one(harness, "c", queue="other", policy=Policy(lease_ttl_us=SECOND))
        claim(harness, 1)
        lease = claim_one(harness, queue="other")
        acquire_one(harness, 1)
        totals = harness.store.totals()
        assert (totals.counts[JobState.READY], totals.counts[JobState.LEASED]) == (1, 3)
        assert (totals.timed_leases, totals.next_expiry_at) == (2, lease.expires_at)
        assert totals.fence >= lease.fence
        assert harness.store.pulse() == (totals.seq, totals.fence, 3)

    @rule("N6", "N1")
    def test_lanes_with_work_are_read_in_the_order_of_their_heads(self, harness: Harness) -> None:
        for lane in ("c", "a", "b"):
            enqueue_many(harness, f"{lane}1", f"{lane}2", lane=lane)
        enqueue_one(harness, "elsewhere", lane="d", queue="other")
        enqueue_one(harness, "free")
        acked(harness, claim_one(harness))
        page = harness.store.lanes(QUEUE)
        assert [(view.lane, view.head and view.head.spec.id, view.waiting) for view in page.lanes] == [
            ("c", "c2", 0),
            ("a", "a1", 1),
            ("b", "b1", 1),
        ]
        seen: list[str] = []
        after: int | None = 0
        while after is not None:
            one = harness.store.lanes(QUEUE, limit=1, after=after)
            seen += [view.lane for view in one.lanes]
            after = one.after
        assert seen == ["c", "a", "b"]

    @rule("N5")
    def test_blocked_lanes_can_be_read_alone(self, harness: Harness) -> None:
        policy = Policy(max_retries=0, on_failure=OnFailure.BLOCK)
        enqueue_one(harness, "blocking", lane="a", policy=policy)
        enqueue_one(harness, "behind", lane="a")
        enqueue_one(harness, "open", lane="b")
        nacked(harness, claim_one(harness))
        page = harness.store.lanes(QUEUE, blocked_only=True)
        assert [(view.lane, view.is_blocked, view.waiting) for view in page.lanes] == [("a", True, 1)]
        assert {view.lane: view.is_blocked for view in harness.store.lanes(QUEUE).lanes} == {"a": True, "b": False}

    @rule("N10")
    def test_a_lane_of_offsets_shows_what_waits_and_what_ended(self, harness: Harness) -> None:
        acked(harness, acquire_one(harness, 1))
        lease = acquire_one(harness, 2)
        acquire(harness, 3)
        view = harness.store.lane(OFFSETS, LANE)
        assert view is not None
        assert view.head is not None
        assert (view.queue, view.lane, view.head.spec.id) == (OFFSETS, LANE, lease.job.id)
        assert (view.waiting, view.is_blocked, view.finished, view.failed) == (1, False, ((1, 1),), ())
        assert harness.store.lane(OFFSETS, "nowhere") is None

    @rule("X2")
    def test_what_was_read_is_the_readers_own(self, harness: Harness) -> None:
        enqueue_and_claim(harness)
        job = job_of(harness)
        job.state = JobState.FAILED
        job.executions[0].token = "changed"
        counts = harness.store.queues()[0].counts
        counts[JobState.LEASED] = 99
        assert state_of(harness) is JobState.LEASED
        assert job_of(harness).executions[0].token != "changed"
        assert harness.store.queues()[0].counts[JobState.LEASED] == 1

    @rule("O6")
    def test_reading_changes_nothing(self, harness: Harness) -> None:
        """Also when a lease has expired: what time has decided is recorded by verbs, and by opening, not by looking."""
        lease = enqueue_and_claim(harness)
        opened = StayingOpen(harness)
        opened.clock.advance(us=lease.expires_at)
        for _ in range(2):
            assert state_of(opened) is JobState.LEASED
            opened.store.jobs()
            opened.store.queues()
            opened.store.totals()
            opened.store.due_in([QUEUE])
            opened.store.lanes(QUEUE)

    @rule("O6")
    def test_a_long_list_can_be_read_in_pages(self, harness: Harness) -> None:
        ids = [f"job-{number}" for number in range(250)]
        harness.store.enqueue([spec(job_id) for job_id in ids])
        assert [job.spec.id for job in every_job(harness, limit=70)] == ids


def _newest_first(harness: Harness, where: JobFilter, limit: int) -> list[str]:
    ids: list[str] = []
    after: int | None = 0
    while after is not None:
        page = harness.store.jobs(where, limit=limit, after=after, newest_first=True)
        ids += [job.spec.id for job in page.jobs]
        after = page.after
    return ids
