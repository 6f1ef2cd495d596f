"""Redacts an answer for a key for some queues: it sees nothing of other queues.

A list that would be cut short by that is filled from the pages behind, so that a client that pages through it does not
stop too early.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

from msgspec import MsgspecError
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.command import Command
from leasemill.kernel.model import ACTIONS_KEPT, QUEUE_LIMIT, Action, JobState, Verb
from leasemill.kernel.schedule import Schedule
from leasemill.server.access.command_targets import template_queues
from leasemill.server.access.key_names import end_of
from leasemill.server.access.permissions import Scope
from leasemill.store.access_keys import AccessKey
from leasemill.store.worker_records import decode_record, encode_record
from leasemill.wire import requests as r

PAGE: Final = 100
MEMBERS_SEEN: Final = 20
"""The number of a group's members that are read to find out which queues it is for."""
ON_QUEUES: Final = frozenset({Verb.PAUSE, Verb.RESUME, Verb.SET_POLICY})

Steps: TypeAlias = Generator[Command[Any], Any, Any]
Keep: TypeAlias = Callable[[Any], Generator[Command[Any], Any, Any | None]]


class JobQueues(Command[dict[str, str]], frozen=True):
    """The queue of each of these jobs; those that are unknown are left out. Asked by access rules alone.

    `may_be_old`: the caller that runs the steps may answer from memory. A job's queue never changes; but its id may be
    given to another job when it was purged."""

    job_ids: Sequence[str]
    may_be_old: bool = False


def redact_answer(key: AccessKey, scope: Scope, command: Command[Any]) -> Steps:
    """Runs the command, and returns what the key may see."""
    match command:
        case c.ListQueues():
            return (yield from _filled(command, lambda view: _if(scope.has(view.name), view), lambda view: view.name))
        case c.ListLeases():
            return (yield from _filled(command, lambda view: _if(scope.has(view.queue), view), lambda view: view.fence))
        case c.ListSchedules():
            keep = lambda one: _if(_has_schedule(scope, one), one)  # noqa: E731
            return (yield from _filled(command, keep, lambda one: one.spec.name))
        case c.ListGroups():
            return (yield from _filled(command, lambda view: _group(scope, view), lambda view: view.id))
        case c.ListLimits():
            return (yield from _filled(command, lambda view: _if(True, _limit(scope, view)), lambda view: view.name))
        case c.DueSchedules():
            found = yield replace(command, limit=BATCH_ITEMS)
            return [one for one in found if _has_schedule(scope, one)][: command.limit]
        case c.NextTick():
            return (yield from _next_tick(scope))
        case c.GetTotals():
            return (yield from _totals(scope))
        case c.ListActions():
            found = yield c.ListActions(ACTIONS_KEPT)
            return [one for one in found if _has_action(key, scope, one)][: command.limit]
        case _:
            return (yield from _part(key, scope, command, (yield command)))


def _part(key: AccessKey, scope: Scope, command: Command[Any], answer: Any) -> Steps:
    match command, answer:
        case c.ListJobs(), c.JobPage():
            return replace(answer, jobs=tuple(job for job in answer.jobs if scope.has(job.spec.queue)))
        case c.GetLimit(), c.LimitView():
            return _limit(scope, answer)
        case c.Expire(), list():
            queues = yield JobQueues([one.job_id for one in answer])
            return [one for one in answer if scope.has(queues.get(one.job_id, ""))]
        case r.ListPresence(), list():
            seen = (_record(key, scope, one) for one in answer)
            return [one for one in seen if one is not None]
        case _:
            return answer


def _filled(command: Any, keep: Keep, cursor: Callable[[Any], Any]) -> Steps:
    """Return as many as were asked for, if there are as many that the key may see."""
    found: list[Any] = []
    query = replace(command, limit=max(command.limit, PAGE))
    while True:
        page = yield query
        for one in page:
            kept = yield from keep(one)
            if kept is not None:
                found.append(kept)
        if len(page) < query.limit or len(found) >= command.limit:
            return found[: command.limit]
        query = replace(query, after=cursor(page[-1]))


def _if(is_seen: bool, view: Any) -> Generator[Command[Any], Any, Any | None]:
    yield from ()
    return view if is_seen else None


def _group(scope: Scope, view: c.GroupView) -> Generator[Command[Any], Any, c.GroupView | None]:
    return view if all(map(scope.has, (yield from group_queues(view)))) else None


def group_queues(view: c.GroupView) -> Generator[Command[Any], Any, set[str]]:
    """A group is for the queues of its callbacks and of its first members."""
    page = yield c.ListJobs(c.JobFilter(group=view.id), MEMBERS_SEEN)
    callbacks = {one.queue for one in (view.then, view.on_end) if one is not None}
    return callbacks | {job.spec.queue for job in page.jobs}


def _has_schedule(scope: Scope, schedule: Schedule) -> bool:
    return all(map(scope.has, template_queues(schedule.spec.call)))


def _has_action(key: AccessKey, scope: Scope, action: Action) -> bool:
    """Return True for what the key itself did, and what was done to its queues; other targets have no queue on
    record."""
    return action.by == key.name or (action.verb in ON_QUEUES and scope.has(action.target))


def _limit(scope: Scope, view: c.LimitView) -> c.LimitView | None:
    """A limit is the whole store's: its numbers explain why a job waits, who holds it is others' business."""
    if view.name.startswith(QUEUE_LIMIT):
        return view if scope.has(view.name.removeprefix(QUEUE_LIMIT)) else None
    return replace(view, holders=(), keys=())


def _record(key: AccessKey, scope: Scope, found: r.PresenceRecord) -> r.PresenceRecord | None:
    """A worker's record, with nothing in it of other queues; its own workers' as they are."""
    if found.worker_id.endswith(end_of(key)):
        return found
    try:
        record = decode_record(found.record)
    except MsgspecError:
        return None
    queues = {queue: number for queue, number in record.queues.items() if scope.has(queue)}
    if not queues:
        return None
    if len(queues) == len(record.queues):
        return found
    part = replace(record, queues=queues, running=[], stuck=[], counters={}, mismatched={}, schedules=[])
    return replace(found, record=encode_record(part))


def _next_tick(scope: Scope) -> Steps:
    schedules = yield from _all_schedules()
    return min((one.next_at for one in schedules if one.pause is None and _has_schedule(scope, one)), default=None)


def _all_schedules() -> Generator[Command[Any], Any, list[Schedule]]:
    found: list[Schedule] = []
    query = c.ListSchedules(BATCH_ITEMS)
    while True:
        page = yield query
        found += page
        if len(page) < query.limit:
            return found
        query = replace(query, after=page[-1].spec.name)


def _totals(scope: Scope) -> Steps:
    """Counted over the key's queues; the positions of the store are as they are."""
    totals: c.Totals = yield c.GetTotals()
    views = yield from _filled(c.ListQueues(BATCH_ITEMS), lambda view: _if(scope.has(view.name), view), _name)
    counts = {state: sum(view.counts.get(state, 0) for view in views) for state in JobState}
    return replace(totals, counts=counts, timed_leases=min(totals.timed_leases, counts[JobState.LEASED]))


def _name(view: c.QueueView) -> str:
    return view.name
