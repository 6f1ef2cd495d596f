"""The authorization of a key's command, from its check to the answer that the client gets, as steps.

A step is a command that is to be run; the caller that runs the steps sends its answer back. First it is checked that
the key may do it and that everything it names is in the key's queues; then the command is run with the key's names in
it; then what the key may not see is taken out of the answer.

What must never happen here: a command that is run before all of it was checked. A batch with one item that is not
allowed is refused whole.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias

from msgspec import MsgspecError

from leasemill.kernel import commands as c
from leasemill.kernel.command import Command
from leasemill.kernel.commands import REPORTS
from leasemill.kernel.machine import check
from leasemill.kernel.model import QUEUE_LIMIT
from leasemill.server.access.command_targets import (
    groups_named,
    jobs_named,
    queues_named,
    queues_of_worker,
    schedules_named,
    template_queues,
)
from leasemill.server.access.key_names import bound, end_of, removed_worker, unbound
from leasemill.server.access.permissions import Scope, check_role, forbidden, scope_of
from leasemill.server.access.redact_answer import JobQueues, Steps, group_queues, redact_answer
from leasemill.store.access_keys import AccessKey
from leasemill.store.presence import instance_of
from leasemill.store.worker_records import decode_record
from leasemill.wire import requests as r

REQUESTS: Final = frozenset(
    {r.WatchQueues, r.WatchEnd, r.WatchCancellations, r.PublishPresence, r.RemovePresence, r.ListPresence}
)
"""Requests that are not commands of the kernel, which checks those."""
NAMING: Final = frozenset({c.Claim, c.Acquire, c.ListLeases, c.OrderWorker})
"""Commands that name a worker or a request, which must not be empty."""
MEMBERS_AT_ONCE: Final = 200
MOST_MEMBERS: Final = 10_000
"""The most members of a group that a key for some queues may cancel: each is looked at first."""

Checks: TypeAlias = Generator[Command[Any], Any, None]


def allowed(key: AccessKey, command: Command[Any]) -> Checks:
    """Returns if the key may; raises `Denied` if not. May ask for jobs, groups and schedules that the command names."""
    check_role(key, command)
    scope = scope_of(key)
    if not scope.is_all:
        yield from _in_scope(key, scope, command)


def performed(key: AccessKey, command: Command[Any]) -> Steps:
    """Return the answer for the key's client."""
    scope = scope_of(key)
    if type(command) in NAMING or (not scope.is_all and type(command) not in REQUESTS):
        check(command)  # as the client wrote it: an empty name is not empty any more when the key's is added
    yield from allowed(key, command)
    sent = bound(key, command)
    answer = (yield sent) if scope.is_all else (yield from redact_answer(key, scope, sent))
    if isinstance(sent, r.PublishPresence) and answer is not None and not (yield from _is_of_key(key, sent.record)):
        return None
    return unbound(key, answer)


def _in_scope(key: AccessKey, scope: Scope, command: Command[Any]) -> Checks:
    for queue, item in queues_named(command):
        scope.check(queue, item)
    _check_bounded(scope, command)
    is_report = type(command) in REPORTS  # of the key's own token, so an old answer about the job does no harm
    yield from _check_jobs(scope, jobs_named(command), may_be_old=is_report)
    for group_id in groups_named(command):
        yield from _check_group(scope, group_id)
    for name in schedules_named(command):
        schedule = yield c.GetSchedule(name)
        if schedule is not None and not all(map(scope.has, template_queues(schedule.spec.call))):
            raise scope.outside(f"schedule {name!r}")
    if isinstance(command, c.OrderWorker | c.GetOrder):
        yield from _check_worker(scope, command.instance)
    if isinstance(command, r.RemovePresence):
        yield from _check_removed(key, scope, command)
    if isinstance(command, c.DeclareLimits):
        yield from _check_declared(key, command)
    if isinstance(command, c.CancelGroup):
        yield from _check_members(scope, command.group_id)


def _check_bounded(scope: Scope, command: Command[Any]) -> None:
    """Require a key for all queues, or a queue, for what acts on the whole store or on all jobs that match."""
    match command:
        case c.Redrive() | c.Purge():
            if command.filter.queue is None and command.filter.job_ids is None:
                raise forbidden(
                    f"key {scope.key_name!r} is for {', '.join(scope.patterns)}: name one of these queues, or jobs",
                    "queue",
                )
        case c.SetLimit() | c.ClearLimit():
            if not command.name.startswith(QUEUE_LIMIT):
                raise scope.outside(f"limit {command.name!r}")
        case c.Prune():
            raise scope.outside("pruning the store")
        case _:
            return


def _check_jobs(scope: Scope, job_ids: Sequence[str], *, may_be_old: bool) -> Checks:
    """Check the queue of each job. Unknown jobs are left to the store to report."""
    if not job_ids:
        return
    queues = yield JobQueues(job_ids, may_be_old)
    for job_id in job_ids:
        if job_id in queues:
            scope.check(queues[job_id], f"job {job_id!r}")


def _check_group(scope: Scope, group_id: str) -> Checks:
    view = yield c.GetGroup(group_id)
    if view is not None and not all(map(scope.has, (yield from group_queues(view)))):
        raise scope.outside(f"group {group_id!r}")


def _check_members(scope: Scope, group_id: str) -> Checks:
    """Check all members: a cancellation reaches each of them."""
    seen, after = 0, 0
    while True:
        page = yield c.ListJobs(c.JobFilter(group=group_id), MEMBERS_AT_ONCE, after)
        for job in page.jobs:
            scope.check(job.spec.queue, f"group {group_id!r}")
        seen += len(page.jobs)
        if page.after is None:
            return
        if seen >= MOST_MEMBERS:
            raise forbidden(
                f"group {group_id!r} has more than {MOST_MEMBERS:,} members: cancel it with a key for all queues",
                f"group {group_id!r}",
            )
        after = page.after


def _check_worker(scope: Scope, instance: str) -> Checks:
    """Refuse a command to a worker that claims from other queues too, or that has no record. A client
    may publish what it likes, so one record of its own does not speak for the others with that instance."""
    named = [found for found in (yield r.ListPresence()) if instance_of(found.record) == instance]
    if not named or not all(_is_within(scope, found) for found in named):
        raise scope.outside(f"worker instance {instance!r}")


def _check_removed(key: AccessKey, scope: Scope, command: r.RemovePresence) -> Checks:
    """A worker of another key that runs, and claims from other queues too, keeps its record: an order to it is checked
    against that."""
    worker_id = removed_worker(key, command)
    if worker_id.endswith(end_of(key)):
        return
    for found in (yield r.ListPresence()):
        if found.worker_id == worker_id and not (_is_within(scope, found) or _is_stale(found)):
            raise scope.outside(f"worker {command.worker_id!r}")


def _is_within(scope: Scope, found: r.PresenceRecord) -> bool:
    """A record that cannot be read, or names no queue, is outside."""
    queues = queues_of_worker(found.record)
    return queues is not None and len(queues) > 0 and all(map(scope.has, queues))


def _is_stale(found: r.PresenceRecord) -> bool:
    try:
        return decode_record(found.record).is_stale(found.age_s)
    except MsgspecError:
        return False


def _is_of_key(key: AccessKey, record: bytes) -> Generator[Command[Any], Any, bool]:
    """Return True if a published instance is the key's: an order to another key's worker is not for this client."""
    instance, end = instance_of(record), end_of(key)
    others = [found for found in (yield r.ListPresence()) if not found.worker_id.endswith(end)]
    return not any(instance_of(found.record) == instance and not _is_stale(found) for found in others)


def _check_declared(key: AccessKey, command: c.DeclareLimits) -> Checks:
    """A limit is the whole store's: a key for some queues declares new ones, its own, or what is declared already."""
    for limit in command.limits:
        view = yield c.GetLimit(limit.name, 1)
        record = None if view is None else view.record
        if record is not None and record.declared not in (None, limit.terms) and record.declared_by != key.name:
            raise forbidden(
                f"limit {limit.name!r} is declared by {record.declared_by!r} with other numbers: declare the same, "
                "or use a key for all queues",
                f"limit {limit.name!r}",
            )
