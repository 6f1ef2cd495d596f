"""Between the kernel's nouns and rows."""

from __future__ import annotations

from collections import defaultdict

from leasemill.kernel.model import (
    EXECUTIONS_KEPT,
    REFUSALS_KEPT,
    Cancellation,
    Execution,
    ExecutionStatus,
    Job,
    JobSpec,
    JobState,
    KeptFailure,
    Refusal,
    Verb,
)
from leasemill.kernel.state import due_at
from leasemill.store.postgres.rows.tables import (
    ExecutionRow,
    JobRow,
    KeptRow,
    LeaseRow,
    MarkRow,
    Read,
    ReadyRow,
    RefusalRow,
    WaitingRow,
)
from leasemill.store.postgres.rows.values import (
    headers_of,
    headers_text,
    policy_numbers,
    policy_of,
    rules_of,
    rules_text,
    terms_of,
    written_terms,
)

# Rows as jobs ------------------------------------------------------------------------------------------------------


def jobs_of(read: Read) -> dict[int, Job]:
    """The jobs by their numbers."""
    executions = defaultdict[int, list[ExecutionRow]](list)
    for execution in read.executions or ():
        executions[execution.no].append(execution)
    refusals = defaultdict[int, list[RefusalRow]](list)
    for refusal in read.refusals or ():
        refusals[refusal.no].append(refusal)
    leases = {row.no: row for row in read.leases or ()}
    kept = {row.no: row for row in read.kept or ()}
    marks = {row.no: row for row in read.marks or ()}
    cancellations = {row.no: row for row in read.cancellations or ()}
    jobs: dict[int, Job] = {}
    for row in read.jobs or ():
        no = row.no
        job = jobs[no] = _job(row, leases.get(no), kept.get(no), marks.get(no), executions.get(no, []))
        if (cancelled := cancellations.get(no)) is not None:
            job.cancellation = Cancellation(cancelled.at, cancelled.by_whom, cancelled.reason)
        job.refusals = tuple(_refusal(refusal) for refusal in refusals.get(no, ())[:REFUSALS_KEPT])
    return jobs


def _job(
    row: JobRow, lease: LeaseRow | None, kept: KeptRow | None, mark: MarkRow | None, ended: list[ExecutionRow]
) -> Job:
    spec = spec_of(row)
    available_at = due_at(spec, row.created_at) if spec.run_at is not None or spec.delay_us else row.created_at
    job = Job(spec, row.no if mark is None else mark.seq, row.created_at, available_at, row.created_at)
    if row.replaced is not None:
        job.replaced, job.updated_at = row.replaced, row.replaced_at or row.created_at
    if ended:
        last = ended[-1]
        job.available_at, job.updated_at, job.attempt = last.available_at, last.finished_at, last.attempt
        job.retries, job.expirations = last.retries or 0, last.expirations or 0
        job.result = _encoded(last.result)
        job.state = JobState.SUCCEEDED if last.slot <= 0 else JobState.READY
    if mark is not None:
        job.redriven_attempt = mark.redriven_attempt
        if mark.redriven_attempt == job.attempt and job.state is JobState.READY:
            job.retries = job.expirations = 0
            job.available_at = job.updated_at = mark.redriven_at
    if kept is not None:
        job.state, job.available_at, job.updated_at = kept.state, kept.available_at, kept.updated_at
        job.retries, job.expirations = kept.retries, kept.expirations
        job.is_cancelled, job.blocks_lane = job.state is JobState.CANCELLED, kept.blocks_lane
    if lease is not None:
        job.state, job.available_at = JobState.LEASED, lease.available_at
        job.updated_at = lease.leased_at if lease.updated_at is None else lease.updated_at
        job.attempt, job.retries, job.expirations = lease.attempt, lease.retries or 0, lease.expirations or 0
        job.result = _encoded(lease.result)
    executions = [_ended(spec.id, one) for one in ended]
    if lease is not None:
        executions.append(_live(spec.id, lease))
    if len(executions) > EXECUTIONS_KEPT:
        executions = [executions[0], *executions[1 - EXECUTIONS_KEPT :]]
    job.executions = tuple(executions)
    return job


def spec_of(row: JobRow) -> JobSpec:
    return JobSpec(
        row.id,
        row.queue,
        row.kind,
        row.payload.encode(),
        row.lane,
        row.priority,
        row.run_at,
        row.delay_us or 0,
        None if row.policy is None else policy_of(row.policy),
        row.lane_offset,
        None if row.headers is None else headers_of(row.headers),
        None if row.rules is None else rules_of(row.rules),
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


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
        _kept_failure(row),
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
        kept_failure=_kept_failure(row),
    )


def _live_status(row: LeaseRow) -> ExecutionStatus:
    if row.committed_at is not None:
        return ExecutionStatus.COMMITTED
    return ExecutionStatus.LEASED if row.started_at is None else ExecutionStatus.STARTED


def _kept_failure(row: LeaseRow | ExecutionRow) -> KeptFailure | None:
    if row.kept_report_id is None or row.kept_retries is None:
        return None
    return KeptFailure(row.kept_report_id, row.kept_retries)


def _refusal(row: RefusalRow) -> Refusal:
    return Refusal(row.verb, row.token, row.worker, row.attempt, row.current_attempt, row.reason, row.at)


# Jobs as rows ------------------------------------------------------------------------------------------------------


def job_row(job: Job, no: int) -> JobRow:
    spec = job.spec
    return JobRow(
        no=no,
        created_at=job.created_at,
        priority=spec.priority,
        id=spec.id,
        queue=spec.queue,
        kind=spec.kind,
        payload=spec.payload.decode(),
        lane=spec.lane,
        lane_offset=spec.offset,
        run_at=spec.run_at,
        delay_us=spec.delay_us or None,
        policy=None if spec.policy is None else policy_numbers(spec.policy),
        headers=headers_text(spec.headers),
        rules=rules_text(spec.rules),
        group_id=None if spec.rules is None else spec.rules.group,
        replaced=job.replaced or None,
        replaced_at=job.updated_at if job.replaced else None,
    )


def ready_row(job: Job, no: int) -> ReadyRow:
    return ReadyRow(
        available_at=job.available_at,
        seq=job.seq,
        rank=9 - job.spec.priority,
        queue=job.spec.queue,
        no=None if no == job.seq else no,
        attempt=job.attempt or None,
        retries=job.retries or None,
        expirations=job.expirations or None,
    )


def waiting_row(job: Job, no: int, turn: int) -> WaitingRow:
    spec = job.spec
    assert spec.lane is not None
    return WaitingRow(
        spec.queue,
        spec.lane,
        turn,
        no,
        job.seq,
        9 - spec.priority,
        job.available_at,
        job.attempt,
        job.retries,
        job.expirations,
    )


def lease_row(job: Job, no: int) -> LeaseRow:
    spec, execution = job.spec, job.executions[-1]
    kept = execution.kept_failure
    return LeaseRow(
        no=no,
        available_at=job.available_at,
        fence=execution.fence,
        leased_at=execution.leased_at,
        expires_at=execution.expires_at,
        attempt=job.attempt,
        rank=9 - spec.priority,
        queue=spec.queue,
        token=execution.token,
        worker=execution.worker,
        request_id=execution.request_id,
        lane=spec.lane,
        lane_offset=spec.offset,
        seq=None if job.seq == no else job.seq,
        retries=job.retries or None,
        expirations=job.expirations or None,
        updated_at=None if job.updated_at == execution.leased_at else job.updated_at,
        terms=written_terms(execution.terms),
        started_at=execution.started_at,
        committed_at=execution.committed_at,
        result=None if job.result is None else job.result.decode(),
        error=execution.error,
        kept_report_id=None if kept is None else kept.report_id,
        kept_retries=None if kept is None else kept.retries,
    )


def execution_row(job: Job, execution: Execution, no: int, slot: int) -> ExecutionRow:
    assert execution.finished_at is not None and execution.ended_by is not None
    is_done = execution.status is ExecutionStatus.DONE
    kept = execution.kept_failure
    return ExecutionRow(
        no=no,
        available_at=job.available_at,
        fence=execution.fence,
        leased_at=execution.leased_at,
        expires_at=execution.expires_at,
        finished_at=execution.finished_at,
        slot=slot,
        attempt=execution.attempt,
        token=execution.token,
        worker=execution.worker,
        ended_by=execution.ended_by,
        is_final=execution.is_final,
        request_id=execution.request_id,
        started_at=execution.started_at,
        committed_at=execution.committed_at,
        committed_by=execution.committed_by,
        retries=job.retries or None,
        expirations=job.expirations or None,
        retry_at=execution.retry_at,
        reason=execution.reason,
        terms=written_terms(execution.terms),
        result=job.result.decode() if is_done and job.result is not None else None,
        error=execution.error,
        kept_report_id=None if kept is None else kept.report_id,
        kept_retries=None if kept is None else kept.retries,
    )


def kept_row(job: Job, no: int) -> KeptRow:
    return KeptRow(
        no,
        job.seq,
        job.state,
        job.available_at,
        job.updated_at,
        job.retries,
        job.expirations,
        job.blocks_lane,
    )


def mark_row(job: Job, no: int) -> MarkRow:
    """When it was redriven matters until it is claimed again; until then that is its last change."""
    assert job.redriven_attempt is not None
    is_last = job.redriven_attempt == job.attempt and job.state is JobState.READY
    return MarkRow(no, job.seq, job.redriven_attempt, job.available_at if is_last else 0)


def refusal_row(refusal: Refusal, no: int) -> RefusalRow:
    return RefusalRow(
        no=no,
        token=refusal.token,
        verb=refusal.verb,
        current_attempt=refusal.current_attempt,
        reason=refusal.reason,
        at=refusal.at,
        worker=refusal.worker,
        attempt=refusal.attempt,
    )
