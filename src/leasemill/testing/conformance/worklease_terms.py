"""N12, N13: what ends a lease of `WorkLease`, how often it retries, what it refuses; async code; the next offset as the
one before succeeds; a start after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from leasemill.api.worklease import (
    AcquireResult,
    AcquireStatus,
    FailResult,
    FailStatus,
    WorkLease,
)
from leasemill.errors import BacklogOrder, Invalid, JobConflict, LeaseNotFound, QueueRefused, TokenMismatch
from leasemill.kernel.model import OnFailure, Policy
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OFFSETS,
    cancelled,
    enqueue_one,
    redrive,
    set_policy,
)
from leasemill.testing.conformance.worklease_steps import (
    ALREADY_FAILED,
    ALREADY_PROCESSED,
    ENQUEUED,
    NO_BACKLOG,
    A,
    B,
    Domain,
    acquired,
    domain_of,
    gave_up,
    held,
    held_again,
    next_hint,
    now,
    processed,
    retry_scheduled,
    work,
)
from leasemill.testing.rules import rule


class WorkLeaseTerms:
    @rule("N12")
    def test_work_lease_a_report_without_a_lease_is_a_mistake(self, harness: Harness) -> None:
        with pytest.raises(LeaseNotFound, match="domain 'A' has nothing in flight"):
            work(harness).succeed(A, "1-token")
        with pytest.raises(LeaseNotFound):
            work(harness).fail(A, "no token")
        lease = acquired(harness, 1, max_retries=0)
        work(harness).succeed(A, lease.token)
        failing = acquired(harness, 2, max_retries=0)
        work(harness).fail(A, failing.token)
        for token in (lease.token, failing.token):
            for verb in ("succeed", "fail"):
                with pytest.raises(LeaseNotFound):
                    getattr(work(harness), verb)(A, token)
        work(harness).try_acquire(A, 3)
        with pytest.raises(TokenMismatch):
            work(harness).succeed(A, failing.token)

    @rule("N12", "N9")
    def test_work_lease_no_time_ends_a_lease(self, harness: Harness) -> None:
        lease = acquired(harness, 1)
        harness.clock.advance(s=100_000_000)
        assert harness.store.expire() == []
        assert held_again(harness, 1).token == lease.token
        assert work(harness).fail(A, lease.token) == retry_scheduled(1)

    @rule("N12", "N9")
    def test_work_lease_a_lease_that_was_asked_for_ends_and_the_first_acquisition_stays(self, harness: Harness) -> None:
        begun = now(harness)
        lease = acquired(harness, 1, lease=10)
        work(harness, lease=10).try_acquire(A, 2)
        harness.clock.advance(s=10)
        with pytest.raises(LeaseNotFound):
            work(harness).succeed(A, lease.token)
        with pytest.raises(BacklogOrder):
            work(harness).try_acquire(A, 2)
        again = acquired(harness, 1)
        assert (again.acquired_at, again.token != lease.token, again.fence > lease.fence) == (begun, True, True)
        assert held_again(harness, 1).acquired_at == begun
        with pytest.raises(TokenMismatch):
            work(harness).succeed(A, lease.token)
        assert work(harness).succeed(A, again.token) == next_hint(2)

    @rule("N12", "I5")
    def test_work_lease_retries_are_the_caller_s_else_the_queue_s_else_three(self, harness: Harness) -> None:
        def failures(domain: str, **options: Any) -> Iterator[FailResult]:
            lease = acquired(harness, 1, domain, **options)
            while True:
                result = work(harness).fail(domain, lease.token)
                yield result
                if result.status is not FailStatus.RETRY_SCHEDULED:
                    return

        assert len(list(failures("default"))) == 4
        set_policy(harness, Policy(max_retries=1, on_failure=OnFailure.BLOCK), OFFSETS)
        assert len(list(failures("queue"))) == 2
        assert len(list(failures("caller", max_retries=2))) == 3
        acquired(harness, 2, "caller")

    @rule("N12", "O1", "O2")
    def test_work_lease_an_operator_may_end_and_redrive_an_offset(self, harness: Harness) -> None:
        lease = acquired(harness, 1)
        work(harness).try_acquire(A, 2)
        cancelled(harness, f"{OFFSETS}/{A}/1")
        with pytest.raises(LeaseNotFound):
            work(harness).succeed(A, lease.token)
        assert work(harness).try_acquire(A, 1) == ALREADY_FAILED
        redrive(harness, f"{OFFSETS}/{A}/1", include_cancelled=True)
        assert processed(harness, 2) == next_hint(1)
        assert acquired(harness, 1).retry_count == 0

    @rule("N12", "I7")
    def test_work_lease_what_cannot_be_is_refused_before_anything_happens(self, harness: Harness) -> None:
        enqueue_one(harness, queue="jobs")
        for options in ({"max_retries": -1}, {"max_retries": True}, {"lease": 0}, {"worker": "\n"}):
            with pytest.raises(Invalid):
                work(harness, **options)
        with pytest.raises(Invalid):
            WorkLease(harness.store, "no queue")
        for domain, offset in ((A, -1), (A, 2**63), (A, True), ("", 1), ("\n", 1)):
            with pytest.raises(Invalid):
                work(harness).try_acquire(domain, offset)
        with pytest.raises(QueueRefused):
            WorkLease(harness.store, "jobs").try_acquire(A, 1)
        assert harness.store.lane(OFFSETS, A) is None

    @rule("N12")
    def test_work_lease_answers_alike_in_async_code(self, harness: Harness) -> None:
        one = work(harness, max_retries=1)

        async def walk() -> list[object]:
            first, also = await asyncio.gather(one.atry_acquire(A, 1), one.atry_acquire(B, 1))
            lease, other = held(first), held(also)
            assert await one.atry_acquire(A, 1) == AcquireResult(AcquireStatus.ALREADY_ACQUIRED, lease)
            answers: list[object] = [await one.atry_acquire(A, 2)]
            answers.append(await one.afail(A, lease.token))
            answers.append(await one.afail(A, lease.token, "again"))
            for call in (one.asucceed, one.afail):
                with pytest.raises(LeaseNotFound):
                    await call(A, lease.token)
            with pytest.raises(BacklogOrder):
                await one.atry_acquire(A, 3)
            last = held(await one.atry_acquire(A, 2))
            for call in (one.asucceed, one.afail):
                with pytest.raises(TokenMismatch):
                    await call(A, lease.token)
            answers.append(await one.asucceed(A, last.token))
            answers.append(await one.asucceed(B, other.token))
            answers += [await one.atry_acquire(A, 1), await one.atry_acquire(A, 2)]
            return answers

        assert asyncio.run(walk()) == [
            ENQUEUED,
            retry_scheduled(1),
            gave_up(1, next_offset=2),
            NO_BACKLOG,
            NO_BACKLOG,
            ALREADY_FAILED,
            ALREADY_PROCESSED,
        ]

    @rule("N12", "E1")
    def test_work_lease_an_orchestrator_that_was_opened_again_gets_its_token_back(self, harness: Harness) -> None:
        lease = acquired(harness, 1)
        work(harness).try_acquire(A, 2)
        work(harness).fail(A, lease.token)
        harness.reopen()
        again = held_again(harness, 1)
        assert (again.token, again.acquired_at, again.retry_count) == (lease.token, lease.acquired_at, 1)
        assert work(harness).succeed(A, again.token) == next_hint(2)
        harness.reopen()
        assert work(harness).try_acquire(A, 1) == ALREADY_PROCESSED
        acquired(harness, 2)

    # The next offset, as the one before succeeds -----------------------------------------------------------------

    @rule("N13", "N8")
    def test_work_lease_the_next_offset_is_acquired_as_the_one_before_succeeds(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        second = held(work(harness).succeed_then_acquire(A, first.token, 2))
        assert domain_of(harness) == Domain([2], [], {1}, set())
        assert (second.offset, second.acquired_at, second.retry_count) == (2, now(harness), 0)
        assert second.fence > first.fence
        assert held_again(harness, 2).token == second.token
        assert work(harness).succeed(A, second.token) == NO_BACKLOG

    @rule("N13", "N7")
    def test_work_lease_the_next_offset_may_have_waited(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        for offset in (2, 3):
            assert work(harness).try_acquire(A, offset) == ENQUEUED
        second = held(work(harness).succeed_then_acquire(A, first.token, 2))
        assert domain_of(harness) == Domain([2], [3], {1}, set())
        assert work(harness).succeed_then_acquire(A, second.token, 1) == ALREADY_PROCESSED
        assert domain_of(harness) == Domain([], [3], {1, 2}, set())

    @rule("N13", "N8")
    def test_work_lease_a_success_stands_if_another_offset_is_next(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        work(harness).try_acquire(A, 2)
        with pytest.raises(BacklogOrder, match="offset 3 of domain 'A' is not next: acquire 2 first"):
            work(harness).succeed_then_acquire(A, first.token, 3)
        assert domain_of(harness) == Domain([], [2], {1}, set())

    @rule("N13", "N12")
    def test_work_lease_after_a_success_that_is_refused_nothing_is_acquired(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        with pytest.raises(TokenMismatch):
            work(harness).succeed_then_acquire(A, "1-another", 2)
        assert domain_of(harness) == Domain([1], [], set(), set())
        work(harness).succeed(A, first.token)
        for token in (first.token, "no token"):
            with pytest.raises(LeaseNotFound):
                work(harness).succeed_then_acquire(A, token, 2)
        assert domain_of(harness) == Domain([], [], {1}, set())

    @rule("N13", "I6")
    def test_work_lease_a_success_stands_if_the_next_offset_is_refused(self, harness: Harness) -> None:
        first = acquired(harness, 1)
        enqueue_one(harness, job_id=offset_id(OFFSETS, A, 2))
        with pytest.raises(JobConflict):
            work(harness).succeed_then_acquire(A, first.token, 2)
        assert domain_of(harness) == Domain([], [], {1}, set())

    @rule("N13")
    def test_work_lease_the_next_offset_in_async_code(self, harness: Harness) -> None:
        async def all_of_it() -> None:
            token = held(await work(harness).atry_acquire(A, 1)).token
            second = held(await work(harness).asucceed_then_acquire(A, token, 2))
            with pytest.raises(TokenMismatch):
                await work(harness).asucceed_then_acquire(A, token, 3)
            assert await work(harness).asucceed(A, second.token) == NO_BACKLOG

        asyncio.run(all_of_it())
