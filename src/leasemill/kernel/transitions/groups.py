"""Groups and chains: the counts of a group, and the jobs that follow a job or a group. Rules B1 to B6 and I6.

A count changes where a member is added, ends or is redriven, once for each job. Nothing here reads the members: a group
of a million costs what one of ten does.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec import json

from leasemill.errors import Broken, GroupRefused
from leasemill.kernel.model import ENDED_STATES, ChainedJob, Job, JobGroup, JobSpec, JobState, QueueMode, Rules
from leasemill.kernel.state import SUCCEEDED, State

LONGEST_STEM: Final = 100

# Deciding ------------------------------------------------------------------------------------------------------


def check_group(state: State, group_id: str) -> None:
    """B1, B3: refuses new members of a group that is unknown or sealed."""
    group = state.groups.get(group_id)
    if group is None or group.sealed_at is not None:
        raise refusal(group_id, is_known=group is not None)


def refusal(group_id: str, *, is_known: bool) -> GroupRefused:
    if is_known:
        return GroupRefused(f"group {group_id!r} is sealed: only its own members may still add members")
    return GroupRefused(f"group {group_id!r} is not known: create it before its members")


def finished(group: JobGroup) -> bool:
    """B2, B3: return True if the group is over now, and its end is not recorded yet."""
    return group.sealed_at is not None and not group.is_over and not group.unfinished


# Applying ------------------------------------------------------------------------------------------------------


def member_added(state: State, rules: Rules) -> None:
    if rules.group is not None:
        group = group_of(state, rules.group)
        group.total += 1
        group.remembered += 1
    for chained in rules.chain:
        use_with_claim(state, chained.queue)


def use_with_claim(state: State, name: str) -> None:
    """I7: a queue that a chain or a callback names is used with claim from then on."""
    queue = state.queue(name)
    if queue.mode is None:
        queue.mode = QueueMode.CLAIM


def member_ended(state: State, job: Job, was: JobState) -> None:
    rules = job.spec.rules
    assert rules is not None
    if rules.group is not None:
        group = group_of(state, rules.group)
        if was in ENDED_STATES:
            count(group, was, -1)  # FAILED or DEAD before, CANCELLED now
        count(group, job.state, 1)
        state.due.append(job)
    elif rules.chain and job.state is SUCCEEDED:
        state.due.append(job)


def member_reopened(state: State, job: Job) -> None:
    """B4: a redriven member is unfinished again."""
    assert job.spec.rules is not None
    if job.spec.rules.group is not None:
        group = group_of(state, job.spec.rules.group)
        count(group, job.state, -1)
        reopen(state, group)


def reopen(state: State, group: JobGroup) -> None:
    while group.is_over:
        group.is_over = False
        if group.parent is None:
            return
        outcome = outcome_of(group)
        group = group_of(state, group.parent)
        count(group, outcome, -1)


def outcome_of(group: JobGroup) -> JobState:
    """Return how a group that is over counts in its parent."""
    return JobState.SUCCEEDED if group.succeeded_at is not None else JobState.FAILED


def count(group: JobGroup, outcome: JobState, by: int) -> None:
    match outcome:
        case JobState.SUCCEEDED:
            group.succeeded += by
        case JobState.FAILED:
            group.failed += by
        case JobState.DEAD:
            group.dead += by
        case JobState.CANCELLED:
            group.cancelled += by
        case JobState.READY | JobState.LEASED:
            raise Broken(f"group {group.id!r} counts ends, and {outcome} is none")


def group_of(state: State, group_id: str) -> JobGroup:
    group = state.groups.get(group_id)
    if group is None:
        raise Broken(f"group {group_id!r} has members and is not there")
    return group


# From a template to a job ---------------------------------------------------------------------------------------


def payload_after(chained: ChainedJob, result: bytes | None) -> bytes:
    """The payload with the result under the name that the job gave it; unchanged if it gave none."""
    if chained.result_name is None:
        return chained.payload
    given = chained.payload.strip()[1:-1].strip()
    taken = json.encode(chained.result_name) + b":" + (result or b"null")
    return b"{" + given + (b"," if given else b"") + taken + b"}"


def chained_spec(job_id: str, chained: ChainedJob, payload: bytes | None = None, rules: Rules | None = None) -> JobSpec:
    """The job that a template stands for."""
    return JobSpec(
        job_id,
        chained.queue,
        chained.kind,
        chained.payload if payload is None else payload,
        chained.lane,
        chained.priority,
        delay_us=chained.delay_us,
        policy=chained.policy,
        headers=chained.headers,
        rules=rules,
    )


def rules_of_chained(chained: ChainedJob, group: str | None, rest: tuple[ChainedJob, ...]) -> Rules | None:
    if chained.unique is None and not chained.limits and group is None and not rest:
        return None
    return Rules(chained.unique, chained.limits, group, rest)


def then_id(stem: str) -> str:
    """I6: the id of the job that follows the success of a job or of a group."""
    return derived_id(stem, "then")


def end_id(group_id: str) -> str:
    """I6: the id of the job that follows the end of a group."""
    return derived_id(group_id, "end")


def derived_id(stem: str, name: str) -> str:
    """An id that follows from another. A long one is cut to a digest, so that a job that follows up on itself for ever
    never runs out of room."""
    if len(stem) > LONGEST_STEM:
        stem = blake2b(stem.encode(), digest_size=16).hexdigest()
    return f"{stem}/{name}"
