"""N12: `WorkLease` on this store. Document 000, scenario by scenario and invariant by invariant, as a user calls it.

Every step makes a `WorkLease` of its own, as an orchestrator does that was started again in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from leasemill.api.worklease import (
    AcquireResult,
    AcquireStatus,
    SucceedResult,
    WorkLease,
)
from leasemill.errors import BacklogOrder, LeaseNotFound, TokenMismatch
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OFFSETS,
    every_job,
    everything,
)
from leasemill.testing.conformance.worklease_steps import (
    ALREADY_FAILED,
    ALREADY_PROCESSED,
    ENQUEUED,
    NO_BACKLOG,
    THREADS,
    A,
    B,
    Domain,
    ResultT,
    acquired,
    at_once,
    check_invariants,
    domain_of,
    gave_up,
    given_up,
    held,
    held_again,
    next_hint,
    now,
    processed,
    retry_scheduled,
    work,
)
from leasemill.testing.rules import rule


class WorkLeases:
    # Sanity test scenarios ---------------------------------------------------------------------------------------

    @rule("N12", "N8")
    def test_work_lease_scenario_1_happy_path(self, harness: Harness) -> None:
        lease = acquired(harness, 1)
        assert work(harness).succeed(A, lease.token) == NO_BACKLOG

    @rule("N12", "N7")
    def test_work_lease_scenario_2_queue_then_orchestrated_hand_off(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        assert work(harness).try_acquire(A, 2) == ENQUEUED
        assert work(harness).succeed(A, first.token) == next_hint(2)
        assert domain_of(harness) == Domain([], [2], {1}, set()), "a hint hands nothing over"
        second = acquired(harness, 2)
        assert second.token != first.token
        assert domain_of(harness) == Domain([2], [], {1}, set())

    @rule("N12", "N8")
    def test_work_lease_scenario_3_out_of_order_acquire(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        work(harness).try_acquire(A, 2)
        work(harness).succeed(A, first.token)
        before = everything(harness)
        with pytest.raises(BacklogOrder, match="offset 3 of domain 'A' is not next: acquire 2 first") as raised:
            work(harness).try_acquire(A, 3)
        assert (raised.value.domain, raised.value.expected, raised.value.got) == (A, 2, 3)
        assert everything(harness) == before
        acquired(harness, 2)

    @rule("N12", "N11")
    def test_work_lease_scenario_4_retry(self, harness: Harness) -> None:
        begun = now(harness)
        lease = acquired(harness, 1)
        assert (lease.offset, lease.acquired_at, lease.retry_count) == (1, begun, 0)
        for count in (1, 2, 3):
            harness.clock.advance(s=100)
            assert work(harness).fail(A, lease.token) == retry_scheduled(count)
            again = held_again(harness, 1)
            assert (again.token, again.acquired_at, again.retry_count) == (lease.token, begun, count)
            assert again.fence == lease.fence
        assert work(harness).succeed(A, lease.token) == NO_BACKLOG

    @rule("N12", "F2", "N10")
    def test_work_lease_scenario_5_final_give_up(self, harness: Harness) -> None:
        lease = acquired(harness, 1, max_retries=2)
        work(harness).try_acquire(A, 2)
        assert work(harness).fail(A, lease.token) == retry_scheduled(1)
        assert work(harness).fail(A, lease.token) == retry_scheduled(2)
        assert work(harness).fail(A, lease.token, "the disk is gone") == gave_up(2, next_offset=2)
        assert domain_of(harness) == Domain([], [2], set(), {1})
        assert [job.executions[-1].error for job in every_job(harness) if job.state is JobState.FAILED] == [
            "the disk is gone"
        ]
        last = acquired(harness, 2)
        assert work(harness).succeed(A, last.token) == NO_BACKLOG
        once = acquired(harness, 3, max_retries=0)
        assert work(harness).fail(A, once.token) == gave_up(0)
        assert domain_of(harness) == Domain([], [], {2}, {1, 3})

    @rule("N12", "N10")
    def test_work_lease_scenario_6_idempotence(self, harness: Harness) -> None:
        processed(harness, 1)
        given_up(harness, 2)
        for _ in ("while nothing is in flight", "while another is"):
            before = everything(harness)
            assert work(harness).try_acquire(A, 1) == ALREADY_PROCESSED
            assert work(harness).try_acquire(A, 2) == ALREADY_FAILED
            assert everything(harness) == before
            work(harness).try_acquire(A, 3)

    # Global invariants -------------------------------------------------------------------------------------------

    @rule("N12", "N1")
    def test_work_lease_invariant_1_a_single_unit_is_in_flight(self, harness: Harness) -> None:
        first = acquired(harness, 5)
        for offset in (6, 4, 7, 5, 6):
            result = work(harness).try_acquire(A, offset)
            assert result.status is (AcquireStatus.ALREADY_ACQUIRED if offset == 5 else AcquireStatus.ENQUEUED)
            assert check_invariants(harness).current == [5]
        work(harness).fail(A, first.token)
        assert check_invariants(harness).current == [5]
        acquired(harness, 5, B)
        assert (check_invariants(harness).current, check_invariants(harness, B).current) == ([5], [5])
        work(harness).succeed(A, first.token)
        assert check_invariants(harness).current == []

    @rule("N12", "N10")
    def test_work_lease_invariant_2_an_offset_is_in_one_place(self, harness: Harness) -> None:
        for first in range(1, 10, 3):
            lease = acquired(harness, first, max_retries=1)
            for offset in (first + 1, first + 2, first, first + 1, 1):
                work(harness, max_retries=1).try_acquire(A, offset)
                check_invariants(harness)
            work(harness).succeed(A, lease.token)
            check_invariants(harness)
            lease = acquired(harness, first + 1)
            work(harness).fail(A, lease.token)
            check_invariants(harness)
            work(harness).fail(A, lease.token)
            check_invariants(harness)
            processed(harness, first + 2)
        assert check_invariants(harness) == Domain([], [], {1, 3, 4, 6, 7, 9}, {2, 5, 8})

    @rule("N12", "N2")
    def test_work_lease_invariant_3_only_the_head_leaves_the_backlog_and_only_by_try_acquire(
        self, harness: Harness
    ) -> None:
        lease = acquired(harness, 1, max_retries=0)
        for offset in (9, 2, 7):
            work(harness, max_retries=0).try_acquire(A, offset)
        assert domain_of(harness).backlog == [9, 2, 7]
        assert work(harness).succeed(A, lease.token) == next_hint(9)
        assert domain_of(harness).backlog == [9, 2, 7]
        for offset in (2, 7, 3):
            with pytest.raises(BacklogOrder):
                work(harness).try_acquire(A, offset)
        assert domain_of(harness).backlog == [9, 2, 7]
        lease = acquired(harness, 9)
        assert domain_of(harness).backlog == [2, 7]
        assert work(harness).fail(A, lease.token) == gave_up(0, next_offset=2)
        assert domain_of(harness).backlog == [2, 7]

    @rule("N12", "N8")
    def test_work_lease_invariant_4_what_has_ended_is_never_acquired_again(self, harness: Harness) -> None:
        for offset in (1, 2, 3):
            processed(harness, offset)
        given_up(harness, 4)
        flying = acquired(harness, 6)
        assert [work(harness).try_acquire(A, offset) for offset in (1, 2, 3)] == [ALREADY_PROCESSED] * 3
        assert work(harness).try_acquire(A, 4) == ALREADY_FAILED
        assert domain_of(harness) == Domain([6], [], {1, 2, 3}, {4})
        assert work(harness).succeed(A, flying.token) == NO_BACKLOG
        assert work(harness).try_acquire(B, 1).status is AcquireStatus.ACQUIRED, "other domains know nothing of it"

    @rule("N12", "L2", "L5")
    def test_work_lease_invariant_5_only_the_lease_s_token_reports(self, harness: Harness) -> None:
        other = acquired(harness, 1, B)
        done = acquired(harness, 7)
        work(harness).succeed(A, done.token)
        lease = acquired(harness, 1)
        forged = f"1-{'0' * 32}"
        before = domain_of(harness), held_again(harness, 1)
        for token in (other.token, done.token, forged, "", "1", "1-", "no token", f"{10**30}-x", f"7/1-{forged}"):
            for verb in ("succeed", "fail"):
                with pytest.raises(TokenMismatch, match="domain 'A' has offset 1 in flight, under another token"):
                    getattr(work(harness), verb)(A, token)
        assert (domain_of(harness), held_again(harness, 1)) == before
        (job,) = (job for job in every_job(harness, JobFilter(lane=A)) if job.state is JobState.LEASED)
        assert {(refusal.token, refusal.verb) for refusal in job.refusals} == {
            (token, verb) for token in (other.token, forged) for verb in (Verb.ACK, Verb.NACK)
        }
        work(harness).succeed(A, lease.token)
        work(harness).succeed(B, other.token)

    @rule("N12")
    def test_work_lease_invariant_6_a_domain_is_made_once_and_acted_on_by_one_at_a_time(self, harness: Harness) -> None:
        """The document's monitor is never replaced, so that no two callers act on one domain at once."""
        store = harness.store
        callers = [WorkLease(store, OFFSETS, worker=f"caller-{number}") for number in range(THREADS)]

        def each(call: Callable[[WorkLease, int], ResultT]) -> list[Callable[[], ResultT]]:
            return [partial(call, one, number) for number, one in enumerate(callers)]

        def reported(token: str) -> list[SucceedResult | Exception]:
            return at_once(*each(lambda one, _number: one.succeed(A, token)))

        begun = at_once(*each(lambda one, _number: one.try_acquire(A, 100)))
        leases = [result.lease for result in begun if isinstance(result, AcquireResult) and result.lease is not None]
        statuses = sorted(result.status for result in begun if isinstance(result, AcquireResult))
        assert statuses == [AcquireStatus.ACQUIRED] + [AcquireStatus.ALREADY_ACQUIRED] * (THREADS - 1)
        assert len({lease.token for lease in leases}) == 1
        queued = at_once(*each(lambda one, number: one.try_acquire(A, number)))
        assert queued == [ENQUEUED] * THREADS
        head = leases[0]
        for left in range(THREADS, 0, -1):
            reports = reported(head.token)
            (hint,) = (report for report in reports if isinstance(report, SucceedResult))
            assert sum(isinstance(report, LeaseNotFound) for report in reports) == THREADS - 1
            assert hint.next_offset is not None, f"{left} are left"
            head = held(callers[0].try_acquire(A, hint.next_offset))
        assert callers[0].succeed(A, head.token) == NO_BACKLOG
        view = store.lane(OFFSETS, A)
        assert view is not None
        assert (view.waiting, view.finished) == (0, ((0, THREADS - 1), (100, 100)))
