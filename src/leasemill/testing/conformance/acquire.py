"""N8 to N11: callers that bring their own offsets, at the level of the verbs. Document 000 itself: worklease.py."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.commands import (
    Acked,
    Acquired,
    AcquireRequest,
    AlreadyAcquired,
    AlreadyFinished,
    Backlogged,
    LaneHint,
    Lease,
    Nacked,
    OutOfOrder,
)
from leasemill.kernel.model import NEVER, SECOND, JobState, LossReason, OnFailure, Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OFFSETS,
    OTHER,
    WORKER,
    ack,
    acked,
    acquire,
    acquire_one,
    cancelled,
    claim,
    every_job,
    everything,
    expect,
    expire,
    extended,
    failed_for_good,
    job_of,
    keep,
    lane_of,
    last_execution,
    nack,
    nacked,
    new_token,
    pause,
    purge,
    redrive,
    refused,
    released,
    set_policy,
    state_of,
)
from leasemill.testing.rules import rule

TIMED = Policy(lease_ttl_us=10 * SECOND)


def hint(job_id: str, offset: int) -> LaneHint:
    return LaneHint(job_id, offset)


def offsets_in(harness: Harness) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    view = lane_of(harness, queue=OFFSETS)
    return view.finished, view.failed


class Acquiring:
    @rule("N8")
    def test_the_one_in_flight_is_already_acquired_by_whoever_asks(self, harness: Harness) -> None:
        """000: offset == lease.currentOffset gives ALREADY_ACQUIRED(token)."""
        lease = acquire_one(harness, 1)
        before = everything(harness)
        assert acquire(harness, 1, worker=OTHER) == AlreadyAcquired(lease)
        assert everything(harness) == before

    @rule("N8")
    def test_the_backlog_has_no_duplicates_and_keeps_its_order(self, harness: Harness) -> None:
        """000: addToBacklog returns at once for an offset that waits already; else it appends at the tail."""
        lease = acquire_one(harness, 5)
        for offset in (9, 2, 9, 7, 2):
            expect(Backlogged, acquire(harness, offset))
        assert lane_of(harness, queue=OFFSETS).waiting == 3
        order = []
        while True:
            following = acked(harness, lease).next_in_lane
            if following is None:
                break
            assert following.offset is not None
            order.append(following.offset)
            lease = acquire_one(harness, following.offset)
        assert order == [9, 2, 7]

    @rule("N8", "I2")
    def test_the_holder_is_fenced_by_its_token(self, harness: Harness) -> None:
        """000: TokenMismatchException, LeaseNotFoundException."""
        lease = acquire_one(harness, 1)
        wrong = acquire_one(harness, 1, lane="other")
        forged = Lease(
            lease.job,
            wrong.token,
            1,
            1,
            OTHER,
            lease.leased_at,
            NEVER,
            lease.terms,
            0,
            0,
            lease.created_at,
        )
        refused(ack(harness, forged), LossReason.UNKNOWN)
        refused(nack(harness, forged), LossReason.UNKNOWN)
        assert state_of(harness, lease.job.id) is JobState.LEASED
        acked(harness, lease)
        refused(nack(harness, lease), LossReason.ENDED)

    @rule("N8")
    def test_lanes_do_not_wait_for_each_other(self, harness: Harness) -> None:
        leases = [acquire_one(harness, 1, lane=lane) for lane in ("a", "b", "c")]
        expect(Backlogged, acquire(harness, 2, lane="a"))
        acked(harness, leases[1])
        acquire_one(harness, 2, lane="b")

    @rule("N8", "C1")
    def test_an_acquire_queue_is_claimed_by_nothing_else(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        released(harness, lease)
        assert state_of(harness, lease.job.id) is JobState.READY
        with pytest.raises(QueueRefused):
            claim(harness, queues=[OFFSETS])
        assert harness.store.due_in([OFFSETS]) is None
        assert acquire_one(harness, 1).attempt == 2

    @rule("N8", "E6")
    def test_a_batch_of_acquires_answers_in_order_and_sees_what_came_before(self, harness: Harness) -> None:
        requests = [AcquireRequest(OFFSETS, LANE, offset, WORKER, new_token()) for offset in (1, 2, 1)]
        first, second, third = harness.store.acquire(requests)
        lease = expect(Acquired, first).lease
        assert lease.token == requests[0].token
        expect(Backlogged, second)
        assert third == AlreadyAcquired(lease)

    @rule("N8", "F1")
    def test_a_failed_offset_waits_for_nobody_but_its_caller(self, harness: Harness) -> None:
        """000: no sleeping state; timing is the orchestrator's."""
        lease = acquire_one(harness, 1)
        nacked(harness, lease, delay_us=100 * SECOND)
        expect(OutOfOrder, acquire(harness, 2))
        assert acquire_one(harness, 1).retries == 1

    @rule("N8", "O3")
    def test_a_paused_queue_can_still_be_acquired_from(self, harness: Harness) -> None:
        pause(harness, OFFSETS)
        acked(harness, acquire_one(harness, 1))

    @rule("N9")
    def test_an_acquired_lease_never_expires(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        assert (lease.expires_at, lease.terms.lease_ttl_us) == (NEVER, NEVER)
        harness.clock.advance(s=1_000_000_000)
        assert expire(harness) == []
        assert acquire(harness, 1) == AlreadyAcquired(lease)
        assert extended(harness, lease) == NEVER
        acked(harness, lease)

    @rule("N9")
    def test_an_acquired_lease_ends_where_the_job_or_the_queue_asks_for_it(self, harness: Harness) -> None:
        now = harness.clock.now()
        assert acquire_one(harness, 1, policy=TIMED).expires_at == now + 10 * SECOND
        set_policy(harness, TIMED, OFFSETS)
        assert acquire_one(harness, 1, lane="other").expires_at == now + 10 * SECOND
        set_policy(harness, Policy(max_retries=1), OFFSETS)
        third = acquire_one(harness, 1, lane="third")
        assert (third.expires_at, third.terms.max_retries) == (NEVER, 1)

    @rule("N9", "N8", "L3")
    def test_an_acquired_lease_that_ran_out_can_be_acquired_again(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1, policy=TIMED)
        expect(Backlogged, acquire(harness, 2, policy=TIMED))
        harness.clock.advance(s=10)
        expect(OutOfOrder, acquire(harness, 2, policy=TIMED))
        again = acquire_one(harness, 1, worker=OTHER, policy=TIMED)
        assert (again.attempt, again.fence > lease.fence) == (2, True)
        refused(ack(harness, lease), LossReason.SUPERSEDED)
        acked(harness, again)

    @rule("I2", "N8")
    def test_an_acquire_repeated_after_its_lease_never_grants_its_token_again(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1, token="the token", policy=TIMED)
        released(harness, lease)
        with pytest.raises(Invalid):
            acquire(harness, 1, token="the token", policy=TIMED)
        again = acquire_one(harness, 1, token="another", policy=TIMED)
        harness.clock.advance(s=10)
        with pytest.raises(Invalid):
            acquire(harness, 1, token="another", policy=TIMED)
        refused(ack(harness, again), LossReason.EXPIRED)
        failed_for_good(harness, acquire_one(harness, 1, policy=TIMED))
        assert acquire(harness, 1, token="another", policy=TIMED) == AlreadyFinished(JobState.FAILED)

    @rule("N10")
    def test_ended_offsets_are_kept_as_ranges(self, harness: Harness) -> None:
        for offset in (1, 2, 3, 7, 5, 6):
            acked(harness, acquire_one(harness, offset))
        for offset in (10, 12, 11):
            failed_for_good(harness, acquire_one(harness, offset))
        assert offsets_in(harness) == (((1, 3), (5, 7)), ((10, 12),))
        acked(harness, acquire_one(harness, 4))
        assert offsets_in(harness) == (((1, 7),), ((10, 12),))
        assert acquire(harness, 4) == AlreadyFinished(JobState.SUCCEEDED)

    @rule("N10")
    def test_of_a_lanes_finished_jobs_only_the_latest_is_kept(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        acked(harness, lease)
        for offset in range(2, 6):
            lease = acquire_one(harness, offset)
            acked(harness, lease)
            assert [job.spec.offset for job in every_job(harness)] == [offset]
        assert expect(Acked, ack(harness, lease)).is_repeat
        assert harness.store.queues()[0].counts[JobState.SUCCEEDED] == 1

    @rule("N10", "F7")
    def test_failed_offsets_keep_their_jobs(self, harness: Harness) -> None:
        for offset in (1, 2):
            failed_for_good(harness, acquire_one(harness, offset))
        assert [(job.spec.offset, job.state) for job in every_job(harness)] == [
            (1, JobState.FAILED),
            (2, JobState.FAILED),
        ]

    @rule("N10", "O5", "O7")
    def test_an_offset_stays_ended_when_its_job_is_forgotten(self, harness: Harness) -> None:
        done = acquire_one(harness, 1)
        acked(harness, done)
        failed = acquire_one(harness, 2)
        failed_for_good(harness, failed)
        purge(harness, done.job.id, failed.job.id)
        assert every_job(harness) == []
        assert acquire(harness, 1) == AlreadyFinished(JobState.SUCCEEDED)
        assert acquire(harness, 2) == AlreadyFinished(JobState.FAILED)
        assert offsets_in(harness) == (((1, 1),), ((2, 2),))

    @rule("N10", "O1")
    def test_a_cancelled_offset_is_ended_and_the_lane_goes_on(self, harness: Harness) -> None:
        first = acquire_one(harness, 1)
        second = expect(Backlogged, acquire(harness, 2))
        expect(Backlogged, acquire(harness, 3))
        cancelled(harness, second.job_id)
        cancelled(harness, first.job.id)
        assert acquire(harness, 2) == AlreadyFinished(JobState.FAILED)
        refused(ack(harness, first), LossReason.CANCELLED)
        acquire_one(harness, 3)

    @rule("N10", "O2")
    def test_a_redriven_offset_can_be_acquired_again(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        failed_for_good(harness, lease)
        redrive(harness, lease.job.id)
        assert offsets_in(harness) == ((), ())
        again = acquire_one(harness, 1)
        assert (again.attempt, again.retries) == (2, 0)
        acked(harness, again)
        assert offsets_in(harness) == (((1, 1),), ())

    @rule("N5", "N10", "O2")
    def test_a_redriven_offset_that_blocks_its_lane_can_be_acquired_again(self, harness: Harness) -> None:
        policy = Policy(on_failure=OnFailure.BLOCK)
        lease = acquire_one(harness, 1, policy=policy)
        failed_for_good(harness, lease)
        assert acquire(harness, 1, policy=policy) == AlreadyFinished(JobState.FAILED)
        expect(Backlogged, acquire(harness, 2))
        redrive(harness, lease.job.id)
        expect(OutOfOrder, acquire(harness, 2))
        acked(harness, acquire_one(harness, 1, policy=policy))
        acquire_one(harness, 2)

    @rule("N11", "L6")
    def test_a_repeated_report_counts_once_and_another_counts_again(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        first = expect(Nacked, keep(harness, lease, "first"))
        assert (first.retries, first.is_repeat) == (1, False)
        again = expect(Nacked, keep(harness, lease, "first"))
        assert (again.state, again.retries, again.is_repeat) == (JobState.LEASED, 1, True)
        assert expect(Nacked, keep(harness, lease, "second")).retries == 2
        assert job_of(harness, lease.job.id).retries == 2
        assert last_execution(harness, lease.job.id).error == "it broke"

    @rule("N11")
    def test_a_kept_lease_ends_when_its_time_ends(self, harness: Harness) -> None:
        """A failure does not extend the lease."""
        lease = acquire_one(harness, 1, policy=Policy(lease_ttl_us=LEASE_US))
        harness.clock.advance(us=LEASE_US - 1)
        keep(harness, lease, "first")
        harness.clock.advance(us=1)
        refused(keep(harness, lease, "second"), LossReason.EXPIRED)
        assert job_of(harness, lease.job.id).retries == 1
