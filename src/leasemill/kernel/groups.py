"""Groups: their counts, changed where a member is added, ends or is redriven, once for each job. Rules B1 to B5.

Nothing here reads the members: a group of a million costs what one of ten does.
"""

from __future__ import annotations

from leasemill.errors import Broken, GroupRefused
from leasemill.kernel.model import ENDED_STATES, Job, JobGroup, JobState, QueueMode, Rules
from leasemill.kernel.state import SUCCEEDED, State

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
    """B2, B3: whether the group is over now, and nobody has noticed yet."""
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
    """How a group that is over counts in its parent."""
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
