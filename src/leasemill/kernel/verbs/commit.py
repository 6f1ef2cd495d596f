"""commit: the effect happens, once for each job, with its result and follow-up jobs. Rules X4 to X7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.kernel.bounds import BATCH_BYTES, FOLLOWUPS, check_json, check_reports
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import ExecutionCommitted, JobEnqueued, JobReplaced
from leasemill.kernel.model import ExecutionStatus, Job, JobSpec, Policy, Rules, Verb
from leasemill.kernel.state import State, due_at
from leasemill.kernel.transitions.executions import mark_committed, reported_uncommitted
from leasemill.kernel.transitions.fence import Lost, execution_of, held, refuse
from leasemill.kernel.transitions.groups import derived_id
from leasemill.kernel.transitions.unique import QueueKey, holder_of, key_of, mark_replaced
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
    if len(command.followups) > FOLLOWUPS:
        raise Invalid(f"{len(command.followups):,} follow-up jobs; a commit takes at most {FOLLOWUPS:,}")
    if sum(len(followup.payload) for followup in command.followups) > BATCH_BYTES:
        raise Invalid(f"the follow-ups' payloads have more than {BATCH_BYTES:,} bytes: enqueue fewer, or smaller ones")
    for index, followup in enumerate(command.followups):
        enqueue.check_job(followup_spec(f"follow-up {index}", followup))
    check_reports([command])
    if command.result is not None:
        check_json("result", command.result)


def decide(state: State, command: Commit, now: int) -> Decision[CommitOutcome]:
    followups = followup_specs(command)
    job = state.jobs.get(command.job_id)
    execution = execution_of(job, command.token)
    if execution is not None and execution.committed_by is Verb.COMMIT:
        ids_then = tuple(_id_or_holder(state, spec, now) for spec in followups)
        return (), Committed(command.job_id, ids_then, is_repeat=True)  # X4: once; L6: answered
    if job is None or not held(execution, now):
        return refuse(job, command.job_id, execution, command.token, Verb.COMMIT, now)
    made: list[JobSpec] = []
    replaced: list[JobReplaced] = []
    ids: list[str] = []
    ahead: dict[QueueKey, Job] = {}
    for spec in followups:
        enqueue.check_queue(state, spec.queue)
        if spec.rules is not None:
            own_group = None if job.spec.rules is None else job.spec.rules.group
            enqueue.refuse_rules(state, spec, spec.rules, own_group)  # B5: it is unfinished, so its group is not over
        events, outcome = enqueue.decide(state, spec, now, ahead)
        if isinstance(outcome, Conflict):
            return (), outcome  # X6: one conflict refuses the whole commit
        ids.append(outcome.job_id)  # U5: of one that was merged, the holder's
        for event in events:
            if isinstance(event, JobEnqueued):
                made.append(event.job)
                _come_ahead(ahead, event)
            elif isinstance(event, JobReplaced):
                replaced.append(event)
                _replace_ahead(ahead, event)
    committed = ExecutionCommitted(command.job_id, command.token, now, command.result, tuple(made))
    return (committed, *replaced), Committed(command.job_id, tuple(ids))


def _come_ahead(ahead: dict[QueueKey, Job], event: JobEnqueued) -> None:
    """E6: a follow-up sees the keys of those before it."""
    rules = event.job.rules
    if rules is not None and rules.unique is not None:
        ahead[event.job.queue, rules.unique.key] = Job(event.job, 0, event.at, due_at(event.job, event.at), event.at)


def _replace_ahead(ahead: dict[QueueKey, Job], event: JobReplaced) -> None:
    for job in ahead.values():
        if job.spec.id == event.job_id:
            mark_replaced(job, event)


def _id_or_holder(state: State, spec: JobSpec, now: int) -> str:
    """L6: what a commit that is repeated answered, as far as it can be known: a follow-up that is not there was merged
    with the job that holds its key. Who took a key that is free is not known to a state that was restored (U6)."""
    key = key_of(spec)
    holder = None if key is None or spec.id in state.jobs else holder_of(state, *key, now)
    return spec.id if holder is None else holder.job_id


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
    job, execution = reported_uncommitted(state, event)  # X4
    mark_committed(job, execution, Verb.COMMIT, event.at, event.result)
    execution.status = ExecutionStatus.COMMITTED
    job.updated_at = event.at
    for followup in event.followups:
        enqueue.add_job(state, followup, event.at)
