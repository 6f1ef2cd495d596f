"""enqueue: a job exists from here on, once for each id, and for each unique key of its queue. Rules E1 to E6, U1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.bounds import (
    BATCH_BYTES,
    HIGHEST_PRIORITY,
    LATEST,
    LONGEST_US,
    check_batch,
    check_headers,
    check_json,
    check_name,
    check_number,
    check_policy,
    check_range,
    check_rules,
    check_text,
)
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import JobEnqueued
from leasemill.kernel.model import Job, JobSpec, QueueMode, Rules, UniqueKey
from leasemill.kernel.schedule import RESERVED
from leasemill.kernel.state import READY, RULES_FORMAT, State, due_at, make_ready
from leasemill.kernel.transitions.groups import chained_spec, check_group, member_added, rules_of_chained, then_id
from leasemill.kernel.transitions.lanes import join_lane
from leasemill.kernel.transitions.unique import KeysAhead, check_unique, holder_of, is_replaced, replacement, take

__all__ = ["Conflict", "Duplicate", "Enqueue", "EnqueueOutcome", "Enqueued", "Merged"]


class Enqueued(Struct, frozen=True):
    job_id: str


class Duplicate(Struct, frozen=True):
    """The id is known with the same content: nothing was changed."""

    job_id: str


class Conflict(Struct, frozen=True):
    """The id is known with other content: refused."""

    job_id: str


class Merged(Struct, frozen=True):
    """The unique key is held by this job, which stands for the call; no other was made.

    `is_replaced`: the job that holds it has the arguments of this call from now on.
    """

    job_id: str
    is_replaced: bool = False


EnqueueOutcome: TypeAlias = Enqueued | Duplicate | Conflict | Merged


class Enqueue(Command[list[EnqueueOutcome]], frozen=True):
    """`are_new`: the ids were drawn for this call, which is not a repeat; a store may then skip looking for them."""

    jobs: Sequence[JobSpec]
    are_new: bool = False


def check(command: Enqueue) -> None:
    check_batch(command.jobs)
    payload_bytes = 0
    for job in command.jobs:
        check_job(job)
        payload_bytes += len(job.payload)
        if job.id.startswith(RESERVED):
            raise Invalid(
                f"job id {job.id!r} begins with {RESERVED!r}, as those of schedules' jobs do: use another"
            )  # P4
        if job.offset is not None:
            raise Invalid(f"job {job.id!r} has an offset; jobs with offsets come by acquire")
    if payload_bytes > BATCH_BYTES:
        raise Invalid(f"the payloads of one call have more than {BATCH_BYTES:,} bytes: send several calls")


def check_job(job: JobSpec) -> None:
    check_text("job id", job.id)
    check_name("queue", job.queue)
    check_name("kind", job.kind)
    check_json("payload", job.payload)
    if job.lane is not None:
        check_text("lane", job.lane)
    if job.priority or type(job.priority) is not int:
        check_number("priority", job.priority, 0, HIGHEST_PRIORITY)
    if job.run_at is not None:
        check_range("run_at", job.run_at, 0, LATEST)
        if job.delay_us:
            raise Invalid("run_at and delay exclude each other: give one of them")
    if job.delay_us or type(job.delay_us) is not int:
        check_number("delay_us", job.delay_us, 0, LONGEST_US)
    if job.policy is not None:
        check_policy(job.policy)
    if job.headers is not None:
        check_headers(job.headers)
    if job.rules is not None:
        check_rules(job.rules)
        for chained in job.rules.chain:
            check_job(chained_spec("chained", chained, rules=rules_of_chained(chained, None, ())))
        if job.rules.unique is not None:
            check_unique(job, job.rules.unique)


def refuse(state: State, command: Enqueue) -> None:
    for name in {job.queue for job in command.jobs}:
        check_queue(state, name)
    for job in command.jobs:
        rules = job.rules
        if rules is not None and (rules.group is not None or rules.chain):
            refuse_rules(state, job, rules, None)


def refuse_rules(state: State, job: JobSpec, rules: Rules, member_of: str | None) -> None:
    """B1, I7: refuses a new member of a group that takes none, and a chain into a queue that is used with acquire."""
    for chained in rules.chain:
        check_queue(state, chained.queue)
    if rules.group is not None and rules.group != member_of and job.id not in state.jobs:
        check_group(state, rules.group)


def check_queue(state: State, name: str) -> None:
    """I7: refuses jobs for a queue that is used with acquire."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")


def decide(state: State, job: JobSpec, now: int, ahead: KeysAhead | None = None) -> Decision[EnqueueOutcome]:
    """`ahead`: jobs that the same commit makes, by their unique keys."""
    known = state.jobs.get(job.id)
    if known is not None:
        # E2: the same content is the same job; E4: other content is refused
        return (), (Duplicate(job.id) if is_same_content(known.spec, job) else Conflict(job.id))
    if job.rules is not None and job.rules.chain and then_id(job.id) in state.jobs:
        return (), Conflict(job.id)  # B6: the next job of an earlier chain with this id is still there
    if job.rules is not None and job.rules.unique is not None:
        return _decide_unique(state, job, job.rules.unique, now, ahead)
    return (JobEnqueued(job, now),), Enqueued(job.id)


def _decide_unique(
    state: State, job: JobSpec, unique: UniqueKey, now: int, ahead: KeysAhead | None
) -> Decision[EnqueueOutcome]:
    holder = holder_of(state, job.queue, unique.key, now, ahead)
    if holder is None:
        return (JobEnqueued(job, now),), Enqueued(job.id)
    replaced = replacement(holder, job, unique, now)
    if replaced is not None:
        return (replaced,), Merged(holder.job_id, is_replaced=True)
    if unique.is_trailing and now < holder.until:
        return (JobEnqueued(replace(job, run_at=holder.until), now),), Enqueued(job.id)  # U10: one more, at the end
    return (), Merged(holder.job_id)


def is_same_content(known: JobSpec, job: JobSpec) -> bool:
    """E4: headers are not content, nor what the store or a later call decided."""
    if known == job:
        return True
    known = replace(known, headers=job.headers)
    if is_replaced(known):
        known = replace(known, payload=job.payload, run_at=None)
    return known == job


def apply(state: State, event: JobEnqueued) -> None:
    add_job(state, event.job, event.at)


def add_job(state: State, spec: JobSpec, at: int) -> None:
    jobs, job_id = state.jobs, spec.id
    if job_id in jobs:
        return  # E5: a known id is left as it is
    seq = state.seq = state.seq + 1
    available_at = due_at(spec, at) if spec.run_at is not None or spec.delay_us else at
    jobs[job_id] = job = Job(spec, seq, at, available_at, at)
    queue = state.queues.get(spec.queue) or state.queue(spec.queue)
    if queue.mode is None:
        queue.mode = QueueMode.CLAIM if spec.offset is None else QueueMode.ACQUIRE
    queue.counts[READY] += 1
    rules = spec.rules
    if rules is not None or spec.headers is not None:
        state.require_format(RULES_FORMAT)
    if rules is not None:
        if rules.group is not None or rules.chain:
            member_added(state, rules)
        if rules.unique is not None:
            take(state, job, rules.unique, at)
    if spec.lane is None:
        make_ready(state, job, at)
    else:
        join_lane(state, job, at)
    state.listing.add(job)
