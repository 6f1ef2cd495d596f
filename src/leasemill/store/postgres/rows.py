"""Between rows and the kernel's nouns. Policies and terms are arrays of seven numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from leasemill.kernel.commands import Lease
from leasemill.kernel.model import (
    EXECUTIONS_KEPT,
    REFUSALS_KEPT,
    AbortReason,
    Cancellation,
    Execution,
    ExecutionStatus,
    Job,
    JobSpec,
    JobState,
    KeptFailure,
    OnFailure,
    Policy,
    Refusal,
    Terms,
    Verb,
)
from leasemill.kernel.ranges import Ranges
from leasemill.kernel.state import due_at

FAILS: Final = (OnFailure.CONTINUE, OnFailure.BLOCK)
ABBREVIATED: Final = Terms(3, 30_000_000, 90_000_000, 5, 500_000, 30_000_000, OnFailure.CONTINUE)
"""What NULL stands for among terms: these numbers, in every version, whatever its defaults are. Never to be changed."""
Row = tuple[Any, ...]


def policy_numbers(policy: Policy | None) -> list[int | None] | None:
    if policy is None:
        return None
    return [
        policy.max_retries,
        policy.lease_ttl_us,
        policy.timeout_us,
        policy.max_expirations,
        policy.backoff_base_us,
        policy.backoff_cap_us,
        None if policy.on_failure is None else FAILS.index(policy.on_failure),
    ]


def policy_text(policy: Policy | None) -> str | None:
    """As the text of an array, for arrays of arrays that differ in their NULLs."""
    return numbers_text(policy_numbers(policy))


def terms_numbers(terms: Terms) -> list[int]:
    return [
        terms.max_retries,
        terms.lease_ttl_us,
        terms.timeout_us,
        terms.max_expirations,
        terms.backoff_base_us,
        terms.backoff_cap_us,
        FAILS.index(terms.on_failure),
    ]


def terms_text(terms: Terms) -> str | None:
    return None if terms == ABBREVIATED else numbers_text(terms_numbers(terms))


def numbers_text(numbers: Sequence[int | None] | None) -> str | None:
    if numbers is None:
        return None
    return "{" + ",".join("NULL" if number is None else str(number) for number in numbers) + "}"


def policy_of(numbers: Sequence[int | None] | None) -> Policy | None:
    if numbers is None:
        return None
    retries, lease, timeout, expirations, base, cap, fails = numbers
    return Policy(retries, lease, timeout, expirations, base, cap, None if fails is None else FAILS[fails])


def terms_of(numbers: Sequence[int] | None) -> Terms:
    if numbers is None:
        return ABBREVIATED
    retries, lease, timeout, expirations, base, cap, fails = numbers
    return Terms(retries, lease, timeout, expirations, base, cap, FAILS[fails])


def lease_of(row: Row) -> Lease:
    """A row of claim.sql."""
    return Lease(
        JobSpec(row[0], row[1], row[2], row[3].encode(), row[4], row[5], row[6], row[7] or 0, policy_of(row[8])),
        row[9],
        row[10],
        row[11],
        row[12],
        row[13],
        row[14],
        terms_of(row[15]),
        row[16] or 0,
        row[17] or 0,
        row[18],
    )


# Jobs as they stand ----------------------------------------------------------------------------------------------


class LeaseRow(Struct, array_like=True):
    """A live execution, as read.sql tells it."""

    seq: int
    available_at: int
    attempt: int
    retries: int
    expirations: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    leased_at: int
    updated_at: int
    expires_at: int
    terms: list[int] | None
    started_at: int | None
    committed_at: int | None
    result: str | None
    error: str | None
    kept_report_id: str | None
    kept_retries: int | None


class KeptRow(Struct, array_like=True):
    seq: int
    state: JobState
    available_at: int
    updated_at: int
    retries: int
    expirations: int
    blocks_lane: bool


class MarkRow(Struct, array_like=True):
    seq: int
    redriven_attempt: int
    redriven_at: int


class ExecutionRow(Struct, array_like=True):
    slot: int
    attempt: int
    available_at: int
    retries: int
    expirations: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    leased_at: int
    expires_at: int
    terms: list[int] | None
    started_at: int | None
    committed_at: int | None
    finished_at: int
    ended_by: Verb
    committed_by: Verb | None
    reason: AbortReason | None
    is_final: bool
    retry_at: int | None
    result: str | None
    error: str | None
    kept_report_id: str | None
    kept_retries: int | None


_lease_row = msgspec.json.Decoder(LeaseRow).decode
_kept_row = msgspec.json.Decoder(KeptRow).decode
_mark_row = msgspec.json.Decoder(MarkRow).decode
_execution_rows = msgspec.json.Decoder(list[ExecutionRow]).decode
_cancellation = msgspec.json.Decoder(Cancellation).decode
_refusals = msgspec.json.Decoder(tuple[Refusal, ...]).decode


def job_of(row: Row) -> tuple[int, Job]:
    """A row of read.sql: the job's number, and the job."""
    spec = JobSpec(
        row[0], row[1], row[2], row[3].encode(), row[4], row[5], row[6], row[7] or 0, policy_of(row[8]), row[9]
    )
    no, created_at = row[10], row[11]
    lease = None if row[12] is None else _lease_row(row[12])
    kept = None if row[13] is None else _kept_row(row[13])
    mark = None if row[14] is None else _mark_row(row[14])
    ended = [] if row[15] is None else _execution_rows(row[15])
    job = Job(spec, no if mark is None else mark.seq, created_at, due_at(spec, created_at), created_at)
    if ended:
        last = ended[-1]
        job.available_at, job.updated_at, job.attempt = last.available_at, last.finished_at, last.attempt
        job.retries, job.expirations = last.retries, last.expirations
        job.result = None if last.result is None else last.result.encode()
        job.state = JobState.SUCCEEDED if last.slot <= 0 else JobState.READY
    if mark is not None:
        job.redriven_attempt = mark.redriven_attempt
        if mark.redriven_attempt == job.attempt and job.state is JobState.READY:
            job.retries = job.expirations = 0
            job.available_at = job.updated_at = mark.redriven_at
    if kept is not None:
        job.state, job.available_at, job.updated_at = kept.state, kept.available_at, kept.updated_at
        job.retries, job.expirations = kept.retries, kept.expirations
        job.is_cancelled, job.blocks_lane = kept.state is JobState.CANCELLED, kept.blocks_lane
    if lease is not None:
        job.state, job.available_at, job.updated_at = JobState.LEASED, lease.available_at, lease.updated_at
        job.attempt, job.retries, job.expirations = lease.attempt, lease.retries, lease.expirations
        job.result = None if lease.result is None else lease.result.encode()
    executions = [_ended(spec.id, one) for one in ended]
    if lease is not None:
        executions.append(_live(spec.id, lease))
    if len(executions) > EXECUTIONS_KEPT:
        executions = [executions[0], *executions[1 - EXECUTIONS_KEPT :]]
    job.executions = tuple(executions)
    job.cancellation = None if row[17] is None else _cancellation(row[17])
    job.refusals = () if row[16] is None else _refusals(row[16])[:REFUSALS_KEPT]
    return no, job


def _ended(job_id: str, row: ExecutionRow) -> Execution:
    return Execution(
        job_id,
        row.attempt,
        row.fence,
        row.token,
        row.worker,
        row.request_id,
        row.leased_at,
        row.expires_at,
        terms_of(row.terms),
        ExecutionStatus.DONE if row.slot <= 0 else ExecutionStatus.ABORTED,
        row.started_at,
        row.committed_at,
        row.finished_at,
        row.reason,
        row.error,
        row.ended_by,
        row.committed_by,
        row.is_final,
        row.retry_at,
        _kept_failure(row.kept_report_id, row.kept_retries),
    )


def _live(job_id: str, row: LeaseRow) -> Execution:
    return Execution(
        job_id,
        row.attempt,
        row.fence,
        row.token,
        row.worker,
        row.request_id,
        row.leased_at,
        row.expires_at,
        terms_of(row.terms),
        _live_status(row),
        row.started_at,
        row.committed_at,
        error=row.error,
        committed_by=None if row.committed_at is None else Verb.COMMIT,
        kept_failure=_kept_failure(row.kept_report_id, row.kept_retries),
    )


def _live_status(row: LeaseRow) -> ExecutionStatus:
    if row.committed_at is not None:
        return ExecutionStatus.COMMITTED
    return ExecutionStatus.LEASED if row.started_at is None else ExecutionStatus.STARTED


def _kept_failure(report_id: str | None, retries: int | None) -> KeptFailure | None:
    return None if report_id is None or retries is None else KeptFailure(report_id, retries)


# Offsets -----------------------------------------------------------------------------------------------------------


def ranges_of(text: str | None) -> Ranges | None:
    """A multirange as PostgreSQL writes it: `{[1,4),[7,8)}`."""
    if text is None:
        return None
    pairs = [one.split(",") for one in text.strip("{}").removeprefix("[").removesuffix(")").split("),[") if one]
    return Ranges((int(first), int(after) - 1) for first, after in pairs)


def ranges_text(ranges: Ranges | None) -> str | None:
    if ranges is None:
        return None
    return "{" + ",".join(f"[{first},{last + 1})" for first, last in ranges) + "}"
