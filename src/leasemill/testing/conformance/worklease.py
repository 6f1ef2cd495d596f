"""N12: `WorkLease` on this store. Document 000, scenario by scenario and invariant by invariant, as a user calls it.

Every step makes a `WorkLease` of its own, as an orchestrator does that was started again in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Barrier
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from leasemill.api.worklease import (
    AcquireResult,
    AcquireStatus,
    FailResult,
    FailStatus,
    LeaseRecord,
    SucceedResult,
    SucceedStatus,
    WorkLease,
)
from leasemill.errors import BacklogOrder, Invalid, LeaseNotFound, QueueRefused, TokenMismatch
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState, OnFailure, Policy, Verb
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OFFSETS,
    OTHER,
    WORKER,
    cancelled,
    enqueue_one,
    every_job,
    everything,
    redrive,
    set_policy,
)
from leasemill.testing.rules import rule

A: Final = "A"
B: Final = "B"
THREADS: Final = 8
NO_BACKLOG: Final = SucceedResult(SucceedStatus.NO_BACKLOG)
ENQUEUED: Final = AcquireResult(AcquireStatus.ENQUEUED)
ALREADY_PROCESSED: Final = AcquireResult(AcquireStatus.ALREADY_PROCESSED)
ALREADY_FAILED: Final = AcquireResult(AcquireStatus.ALREADY_FAILED)

ResultT = TypeVar("ResultT")


def next_hint(offset: int) -> SucceedResult:
    return SucceedResult(SucceedStatus.NEXT_HINT, offset)


def retry_scheduled(retry_count: int) -> FailResult:
    return FailResult(FailStatus.RETRY_SCHEDULED, retry_count)


def gave_up(retry_count: int, next_offset: int | None = None) -> FailResult:
    status = FailStatus.GIVE_UP_NO_BACKLOG if next_offset is None else FailStatus.GIVE_UP_NEXT_HINT
    return FailResult(status, retry_count, next_offset)


def work(harness: Harness, **options: Any) -> WorkLease:
    return WorkLease(harness.store, OFFSETS, worker=options.pop("worker", WORKER), **options)


def now(harness: Harness) -> datetime:
    return datetime.fromtimestamp(harness.clock.now() / 1_000_000, UTC)


def held(result: AcquireResult, status: AcquireStatus = AcquireStatus.ACQUIRED) -> LeaseRecord:
    """The lease of an answer that gives one."""
    assert result.status is status
    assert result.lease is not None
    return result.lease


def acquired(harness: Harness, offset: int, domain: str = A, **options: Any) -> LeaseRecord:
    return held(work(harness, **options).try_acquire(domain, offset))


def held_again(harness: Harness, offset: int, domain: str = A) -> LeaseRecord:
    return held(work(harness, worker=OTHER).try_acquire(domain, offset), AcquireStatus.ALREADY_ACQUIRED)


def processed(harness: Harness, offset: int, domain: str = A) -> SucceedResult:
    """Acquire an offset and succeed with it."""
    token = acquired(harness, offset, domain).token
    return work(harness).succeed(domain, token)


def given_up(harness: Harness, offset: int, domain: str = A) -> FailResult:
    """Acquire an offset that has no retry, and fail with it."""
    token = acquired(harness, offset, domain, max_retries=0).token
    return work(harness).fail(domain, token)


class Domain(NamedTuple):
    """A domain as the document describes it, read from the store."""

    current: list[int]
    backlog: list[int]
    processed: set[int]
    failed: set[int]


def domain_of(harness: Harness, domain: str = A) -> Domain:
    view = harness.store.lane(OFFSETS, domain)
    jobs = every_job(harness, JobFilter(queue=OFFSETS, lane=domain))

    def offsets(state: JobState) -> list[int]:
        return [job.spec.offset for job in jobs if job.state is state and job.spec.offset is not None]

    def numbers(ranges: tuple[tuple[int, int], ...]) -> set[int]:
        return {number for first, last in ranges for number in range(first, last + 1)}

    finished, failed = ((), ()) if view is None else (view.finished, view.failed)
    return Domain(offsets(JobState.LEASED), offsets(JobState.READY), numbers(finished), numbers(failed))


def check_invariants(harness: Harness, domain: str = A) -> Domain:
    """000, global invariants 1 and 2."""
    found = domain_of(harness, domain)
    ended = found.processed | found.failed
    assert len(found.current) <= 1
    assert len(set(found.backlog)) == len(found.backlog)
    assert not set(found.current) & (ended | set(found.backlog))
    assert not ended & set(found.backlog)
    assert not found.processed & found.failed
    return found


def at_once(*calls: Callable[[], ResultT]) -> list[ResultT | Exception]:
    """What calls answer, or raise, that are made by as many threads at the same moment."""
    barrier = Barrier(len(calls))

    def made(call: Callable[[], ResultT]) -> ResultT | Exception:
        barrier.wait()
        try:
            return call()
        except (BacklogOrder, TokenMismatch, LeaseNotFound) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(made, calls))


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

    # What else the document says -----------------------------------------------------------------------------------

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
