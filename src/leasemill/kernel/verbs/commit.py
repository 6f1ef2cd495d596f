"""commit: the effect happens, once for each job, with its result and follow-up jobs. Rules X4 to X7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import BATCH_BYTES, FOLLOWUPS, check_json, check_report
from leasemill.kernel.chained import derived_id
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.ending import mark_committed
from leasemill.kernel.events import ExecutionCommitted
from leasemill.kernel.fence import Lost, execution_of, held, refuse
from leasemill.kernel.lookup import uncommitted
from leasemill.kernel.model import ExecutionStatus, JobSpec, Policy, Rules, Verb
from leasemill.kernel.state import State
from leasemill.kernel.verbs import enqueue
from leasemill.kernel.verbs.enqueue import Conflict

__all__ = ["Commit", "CommitOutcome", "Committed", "Followup"]


class Followup(Struct, frozen=True):
    """A job to be enqueued with a commit; its id follows from the committing job's."""

    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    run_at: int | None = None
    delay_us: int = 0
    policy: Policy | None = None
    headers: dict[str, str] | None = None
    rules: Rules | None = None


class Committed(Struct, frozen=True):
    job_id: str
    followup_ids: tuple[str, ...]
    is_repeat: bool = False


CommitOutcome: TypeAlias = Committed | Conflict | Lost


class Commit(Command[CommitOutcome], frozen=True):
    job_id: str
    token: str
    result: bytes | None = None
    followups: Sequence[Followup] = ()


def check(command: Commit) -> None:
    check_report(command)
    if command.result is not None:
        check_json("result", command.result)
    if len(command.followups) > FOLLOWUPS:
        raise Invalid(f"{len(command.followups):,} follow-up jobs; a commit takes at most {FOLLOWUPS:,}")
    if sum(len(followup.payload) for followup in command.followups) > BATCH_BYTES:
        raise Invalid(f"the follow-ups' payloads have more than {BATCH_BYTES:,} bytes: enqueue fewer, or smaller ones")
    for index, followup in enumerate(command.followups):
        enqueue.check_job(followup_spec(f"follow-up {index}", followup))


def decide(state: State, command: Commit, now: int) -> Decision[CommitOutcome]:
    job = state.jobs.get(command.job_id)
    execution = execution_of(job, command.token)
    if execution is not None and execution.committed_by is Verb.COMMIT:
        ids = tuple(followup_id(command.job_id, index) for index in range(len(command.followups)))
        return (), Committed(command.job_id, ids, is_repeat=True)  # X4: once; L6: its repeat is answered
    if job is None or not held(execution, now):
        return refuse(job, command.job_id, execution, command.token, Verb.COMMIT, now)
    followups = followup_specs(command)
    for spec in followups:
        enqueue.check_queue(state, spec.queue)
        if spec.rules is not None:
            own_group = None if job.spec.rules is None else job.spec.rules.group
            enqueue.refuse_rules(state, spec, spec.rules, own_group)  # B5: it is unfinished, so its group is not over
        _, outcome = enqueue.decide(state, spec, now)
        if isinstance(outcome, Conflict):
            return (), outcome  # X6: one conflict refuses the whole commit
    event = ExecutionCommitted(command.job_id, command.token, now, command.result, followups)
    return (event,), Committed(command.job_id, tuple(spec.id for spec in followups))


def followup_specs(command: Commit) -> tuple[JobSpec, ...]:
    return tuple(
        followup_spec(followup_id(command.job_id, index), followup) for index, followup in enumerate(command.followups)
    )


def followup_id(job_id: str, index: int) -> str:
    """I6: the same commit gives the same ids."""
    return derived_id(job_id, str(index))


def followup_spec(job_id: str, followup: Followup) -> JobSpec:
    return JobSpec(
        job_id,
        followup.queue,
        followup.kind,
        followup.payload,
        followup.lane,
        followup.priority,
        followup.run_at,
        followup.delay_us,
        followup.policy,
        headers=followup.headers,
        rules=followup.rules,
    )


def apply(state: State, event: ExecutionCommitted) -> None:
    job, execution = uncommitted(state, event)  # X4
    mark_committed(job, execution, Verb.COMMIT, event.at, event.result)
    execution.status = ExecutionStatus.COMMITTED
    job.updated_at = event.at
    for followup in event.followups:
        enqueue.add_job(state, followup, event.at)
