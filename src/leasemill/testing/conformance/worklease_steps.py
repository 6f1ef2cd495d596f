"""Calls of `WorkLease` that its tests are made of, each as an orchestrator makes it that was started again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier
from typing import Any, Final, NamedTuple, TypeVar

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
from leasemill.errors import BacklogOrder, LeaseNotFound, TokenMismatch
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OFFSETS,
    OTHER,
    WORKER,
    every_job,
)

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
    """Return the results of calls, or what they raise, made by as many threads at the same moment."""
    barrier = Barrier(len(calls))

    def made(call: Callable[[], ResultT]) -> ResultT | Exception:
        barrier.wait()
        try:
            return call()
        except (BacklogOrder, TokenMismatch, LeaseNotFound) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(made, calls))
