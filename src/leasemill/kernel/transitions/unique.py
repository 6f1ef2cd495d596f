"""Unique keys: who holds one and for how long, and what happens to an enqueue with a held key. Rules U1 to U10.

A key is not a lock that lives by itself. A state knows which job took it last; whether it is held follows from how
that job stands, and from the time, whenever it is asked for. So nothing releases a key, and none can leak.

A key belongs to its queue. What must never happen here: an enqueue into one queue that finds, merges with or replaces a
job of another. A client that may enqueue into a queue may do all of that to the jobs in it, and to no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from leasemill.errors import Invalid
from leasemill.kernel.events import JobReplaced
from leasemill.kernel.index.taken_keys import ANY_QUEUE, Key
from leasemill.kernel.model import Job, JobSpec, UniqueKey, UniqueUntil
from leasemill.kernel.state import KEYS_FORMAT, LEASED, READY, State, postpone
from leasemill.kernel.transitions.executions import does_not_follow, job_of

QueueKey: TypeAlias = tuple[str, str]
"""A queue, and a unique key in it."""
KeysAhead: TypeAlias = Mapping[QueueKey, Job]


class Holder(NamedTuple):
    """The job that holds a key; `job` is None if it is forgotten and its key is kept."""

    job_id: str
    until: int
    job: Job | None


def unique_of(spec: JobSpec) -> UniqueKey | None:
    return None if spec.rules is None else spec.rules.unique


def key_of(spec: JobSpec) -> QueueKey | None:
    """U1: the key that a job takes."""
    unique = unique_of(spec)
    return None if unique is None else (spec.queue, unique.key)


def check_unique(job: JobSpec, unique: UniqueKey) -> None:
    """Check what a key asks of the rest of its job."""
    if unique.at_most_us is not None:
        if unique.until is not UniqueUntil.STARTED or unique.keep_us or unique.is_trailing:
            raise Invalid("a debounced job holds its key only until it is started: leave out keep and trailing")
        if not 0 < job.delay_us < unique.at_most_us:
            raise Invalid(
                f"a debounced job waits {job.delay_us} us, at most {unique.at_most_us} us: "
                "the wait must be more than 0 and less than that"
            )
    elif unique.is_trailing and (not unique.keep_us or unique.until is not UniqueUntil.STARTED):
        raise Invalid("a trailing job needs a key that is kept for a time and held until its job is started")
    if is_timed(unique) and job.lane is not None:
        raise Invalid(
            "a debounced job, or a throttled job with a trailing one, would block its lane: leave out the lane"
        )
    if is_timed(unique) and job.run_at is not None:
        raise Invalid("the start time of a debounced or throttled job follows from its rule: leave out run_at")
    if unique.is_trailing and job.delay_us:
        raise Invalid(
            "the start time of a throttled job with a trailing one follows from its rule: leave out the delay"
        )


def is_timed(unique: UniqueKey) -> bool:
    """Return True if the store decides when a job with this key is due."""
    return unique.at_most_us is not None or unique.is_trailing


def is_replaced(spec: JobSpec) -> bool:
    """Return True if `run_at` is the store's and the payload may be a later call's: the caller gives no time to such a
    job."""
    unique = unique_of(spec)
    return unique is not None and spec.run_at is not None and is_timed(unique)


# Deciding ------------------------------------------------------------------------------------------------------


def holder_of(state: State, queue: str, key: str, now: int, ahead: KeysAhead | None = None) -> Holder | None:
    """Return the job that holds a key of a queue now. `ahead`: jobs with keys that the same commit makes."""
    made = None if ahead is None else ahead.get((queue, key))
    if made is not None:
        return Holder(made.spec.id, kept_until(made), made)
    taken = state.keys.get(queue, key) or state.keys.get(ANY_QUEUE, key)
    return None if taken is None else _holder(state, key, taken, now)


def _holder(state: State, key: str, taken: Key, now: int) -> Holder | None:
    job = taker_of(state, key, taken)
    if now < taken.until or (job is not None and holds(job)):
        return Holder(taken.job_id, taken.until, job)
    return None  # U6: free, although nothing released it


def taker_of(state: State, key: str, taken: Key) -> Job | None:
    """The job that took a key last; None: it is forgotten, and its id may be another's by now."""
    job = state.jobs.get(taken.job_id)
    if job is None or job.spec.queue != taken.queue:
        return None
    unique = unique_of(job.spec)
    return job if unique is not None and unique.key == key else None


def holds(job: Job) -> bool:
    """U2: whether a job that took its key holds it still, apart from the time it is kept."""
    unique = unique_of(job.spec)
    if unique is None:
        return False
    if unique.until is UniqueUntil.STARTED:
        return is_untouched(job)
    return job.state is READY or job.state is LEASED


def follows(job: Job) -> bool:
    """Return True if it follows from the job alone that it has its key: a trailing one takes it from a job that
    waits."""
    unique = unique_of(job.spec)
    return unique is not None and not unique.is_trailing and holds(job)


def is_untouched(job: Job) -> bool:
    """Neither claimed nor redriven so far."""
    return job.state is READY and job.attempt == 0 and job.redriven_attempt is None


def retakes(job: Job) -> bool:
    """U4: whether a redrive takes the job's key again; one that is held until the start is not taken twice (U2)."""
    unique = unique_of(job.spec)
    return unique is not None and unique.until is UniqueUntil.ENDED


def kept_until(job: Job) -> int:
    """U3: from its enqueue on; for a trailing job, from when it is due."""
    unique = unique_of(job.spec)
    if unique is None or not unique.keep_us:
        return 0
    is_later = unique.is_trailing and job.spec.run_at is not None
    return (job.spec.run_at or 0 if is_later else job.created_at) + unique.keep_us


def replacement(holder: Holder, job: JobSpec, unique: UniqueKey, now: int) -> JobReplaced | None:
    """U8, U10: the call takes the place of the one that waits. None: it is not that kind of job, or waits no more."""
    waiting = holder.job
    known = None if waiting is None else unique_of(waiting.spec)
    if waiting is None or known is None or not is_untouched(waiting) or waiting.spec.kind != job.kind:
        return None
    due_at = waiting.available_at
    if unique.at_most_us is not None and known.at_most_us is not None:
        due_at = max(due_at, min(now + job.delay_us, waiting.created_at + known.at_most_us))
    elif not (unique.is_trailing and known.is_trailing and (waiting.spec.run_at is not None or now >= holder.until)):
        return None
    return JobReplaced(waiting.spec.id, now, job.payload, job.headers, due_at)


# Applying ------------------------------------------------------------------------------------------------------


def take(state: State, job: Job, unique: UniqueKey, at: int) -> None:
    """The job has its key from here on; it was decided that no other job of its queue holds it."""
    queue, key = job.spec.queue, unique.key
    if state.format < KEYS_FORMAT and any(_holder(state, key, one, at) for one in state.keys.elsewhere(queue, key)):
        state.require_format(KEYS_FORMAT)  # W16: earlier versions know one holder of a key in all queues
    state.keys.put(key, Key(job.spec.id, kept_until(job) if unique.keep_us else 0, queue))
    if state.kept_keys:
        drop_kept(state, at)


def leave_key(state: State, job: Job, at: int) -> None:
    """The job is forgotten: its key is too, or when its time is over."""
    unique, queue = unique_of(job.spec), job.spec.queue
    taken = None if unique is None else state.keys.get(queue, unique.key)
    if unique is None or taken is None or taken.job_id != job.spec.id:
        return
    if taken.until > at:
        heappush(state.kept_keys, (taken.until, queue, unique.key))
    else:
        state.keys.remove(queue, unique.key)
    drop_kept(state, at)


def drop_kept(state: State, at: int) -> None:
    """Keys whose job is forgotten and whose time is over."""
    heap = state.kept_keys
    while heap and heap[0][0] <= at:
        until, queue, key = heappop(heap)
        taken = state.keys.get(queue, key)
        if taken is not None and taken.until == until and taker_of(state, key, taken) is None:
            state.keys.remove(queue, key)


def apply_replaced(state: State, event: JobReplaced) -> None:
    job = job_of(state, event)
    if not is_untouched(job):
        does_not_follow(event, "it was claimed before")  # U9
    postpone(state, job, event.available_at, event.at)
    mark_replaced(job, event)


def mark_replaced(job: Job, event: JobReplaced) -> None:
    job.spec = replace(job.spec, payload=event.payload, headers=event.headers, run_at=event.available_at)
    job.available_at = event.available_at
    job.updated_at = event.at
    job.replaced += 1
