"""create_group, seal_group and cancel_group, and how a group ends. Rules B1 to B4."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Broken, GroupRefused, Invalid, NotFound
from leasemill.kernel.bounds import check_limit, check_text
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import GroupCreated, GroupEnded, GroupSealed, GroupsPruned
from leasemill.kernel.model import UNENDED_STATES, ChainedJob, JobGroup, JobState, Verb
from leasemill.kernel.read.filter import JobFilter, Operated, fitting
from leasemill.kernel.read.rules import GroupView, group_view
from leasemill.kernel.state import State, forget_member, list_if_over
from leasemill.kernel.transitions.actions import check_operator, record
from leasemill.kernel.transitions.groups import (
    chained_spec,
    check_group,
    count,
    end_id,
    group_of,
    outcome_of,
    then_id,
    use_with_claim,
)
from leasemill.kernel.verbs import cancel, enqueue

__all__ = ["CancelGroup", "CreateGroup", "OpenedGroup", "SealGroup"]


class OpenedGroup(Struct, frozen=True):
    """The group as it stands; `is_repeat`: it was there, with the same content."""

    group: GroupView
    is_repeat: bool = False


class CreateGroup(Command[OpenedGroup], frozen=True):
    """`then` is enqueued when all members have succeeded, `on_end` when all have ended, however."""

    group_id: str
    then: ChainedJob | None = None
    on_end: ChainedJob | None = None
    parent: str | None = None


class SealGroup(Command[GroupView], frozen=True):
    """Accept no more members, except those that members add. Repeated, it changes nothing. `by` and `reason`: of an
    operator."""

    group_id: str
    by: str = ""
    reason: str = ""


class CancelGroup(Command[Operated], frozen=True):
    """Seal the group and cancel its members that have not ended; `after` continues it. The groups in it are cancelled
    by commands of their own: `store.operations`."""

    group_id: str
    by: str
    reason: str
    limit: int
    after: int = 0


def check_create(command: CreateGroup) -> None:
    check_text("group", command.group_id)
    if command.parent is not None:
        check_text("parent group", command.parent)
        if command.parent == command.group_id:
            raise Invalid(f"group {command.group_id!r} cannot be a member of itself: name another parent")
    for name, template in (("then", command.then), ("on_end", command.on_end)):
        if template is None:
            continue
        if template.result_name is not None:
            raise Invalid(f"{name} takes the result of a job before it, and a group has none: leave result_name out")
        enqueue.check_job(chained_spec(name, template))


def check_seal(command: SealGroup) -> None:
    check_text("group", command.group_id)
    if command.by or command.reason:
        check_operator(command)


def check_cancel(command: CancelGroup) -> None:
    check_text("group", command.group_id)
    check_limit(command)
    check_operator(command)


def decide_create(state: State, command: CreateGroup, now: int) -> Decision[OpenedGroup]:
    known = state.groups.get(command.group_id)
    if known is not None:
        if not _is_same_content(known, command):
            raise GroupRefused(f"group {command.group_id!r} exists with other content: use a new id")
        return (), OpenedGroup(group_view(known), is_repeat=True)
    if command.parent is not None:
        check_group(state, command.parent)
    for template, job_id in ((command.then, then_id(command.group_id)), (command.on_end, end_id(command.group_id))):
        if template is None:
            continue
        enqueue.check_queue(state, template.queue)
        if job_id in state.jobs:
            raise GroupRefused(f"job {job_id!r} of an earlier group is still there: use a new id for the group")
    event = GroupCreated(command.group_id, now, command.then, command.on_end, command.parent)
    return (event,), OpenedGroup(group_view(_group_of(event, 0)))


def _is_same_content(known: JobGroup, command: CreateGroup) -> bool:
    """E4: headers are not content."""
    return (known.parent, _without_headers(known.then), _without_headers(known.on_end)) == (
        command.parent,
        _without_headers(command.then),
        _without_headers(command.on_end),
    )


def _without_headers(template: ChainedJob | None) -> ChainedJob | None:
    return None if template is None else replace(template, headers=None)


def seal_steps(state: State, command: SealGroup, now: int, do: Do) -> GroupView:
    group = _known(state, command.group_id)
    if group.sealed_at is None:
        do(((GroupSealed(group.id, now, command.by, command.reason),), None))
    return group_view(group)


def _known(state: State, group_id: str) -> JobGroup:
    group = state.groups.get(group_id)
    if group is None:
        raise NotFound(f"no group {group_id!r}: it was never created, or retention has removed it")
    return group


def cancel_steps(state: State, command: CancelGroup, now: int, do: Do) -> Operated:
    group = _known(state, command.group_id)
    if group.sealed_at is None:
        do(((GroupSealed(group.id, now),), None))
    wanted = JobFilter(group=group.id)
    jobs, after = fitting(state, wanted, UNENDED_STATES, command.limit, command.after)
    last = jobs[-1].seq if jobs else 0
    each = cancel.Cancel((), command.by, command.reason)
    outcomes = [do(cancel.decide(state, job.spec.id, each, now)) for job in jobs]
    if after is None and any(_succeeded(outcome) for outcome in outcomes):
        after = last  # B6: it had committed, and the next of its chain is a member too
    return Operated(tuple(outcome.job_id for outcome in outcomes), after)


def _succeeded(outcome: cancel.CancelOutcome) -> bool:
    return isinstance(outcome, cancel.Cancelled) and outcome.state is JobState.SUCCEEDED


# Applying ------------------------------------------------------------------------------------------------------


def apply_created(state: State, event: GroupCreated) -> None:
    if event.group_id in state.groups:
        raise Broken(f"group {event.group_id!r} is created twice")
    state.seq += 1
    state.groups[event.group_id] = _group_of(event, state.seq)
    for template in (event.then, event.on_end):
        if template is not None:
            use_with_claim(state, template.queue)
    if event.parent is not None:
        parent = group_of(state, event.parent)
        parent.total += 1
        parent.remembered += 1


def _group_of(event: GroupCreated, seq: int) -> JobGroup:
    return JobGroup(event.group_id, seq, event.at, event.then, event.on_end, event.parent)


def apply_sealed(state: State, event: GroupSealed) -> None:
    group = group_of(state, event.group_id)
    if group.sealed_at is not None:
        raise Broken(f"group {event.group_id!r} is sealed twice")
    group.sealed_at = event.at
    state.due.append(group)
    if event.by:
        record(state, Verb.SEAL_GROUP, event.group_id, event)


def apply_ended(state: State, event: GroupEnded) -> None:
    group = group_of(state, event.group_id)
    if group.is_over or group.unfinished or group.sealed_at is None:
        raise Broken(f"GroupEnded for group {event.group_id!r} does not follow: {group.unfinished} are unfinished")
    group.is_over = True
    if group.ended_at is None:
        group.ended_at = event.at
    if event.has_succeeded:
        group.succeeded_at = event.at
    list_if_over(state, group)
    if group.parent is not None:
        parent = group_of(state, group.parent)
        count(parent, outcome_of(group), 1)
        state.due.append(parent)


def apply_pruned(state: State, event: GroupsPruned) -> None:
    for group_id in event.group_ids:
        group = group_of(state, group_id)
        if not group.is_over or group.remembered:
            raise Broken(f"GroupsPruned for group {group_id!r} does not follow: it is not over")
        del state.groups[group_id]
        seq, group.seq = group.seq, 0
        assert group.ended_at is not None
        state.over.remove(group.ended_at, seq)
        if group.parent is not None:
            forget_member(state, group.parent)
