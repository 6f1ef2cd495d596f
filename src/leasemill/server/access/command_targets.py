"""The targets that a command names: queues, jobs, groups, schedules. One `match` for each, closed over all commands.

What a client wrote is all there is to see here; which queue a job is in must be looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from msgspec import MsgspecError

from leasemill.kernel import commands as c
from leasemill.kernel.commands import HolderReport, reports_in
from leasemill.kernel.model import QUEUE_LIMIT, ChainedJob, JobSpec, Rules
from leasemill.store.worker_records import decode_record
from leasemill.wire import requests as r

Template: TypeAlias = JobSpec | c.Followup | ChainedJob


class NamedItem(NamedTuple):
    """A queue that a command names, and how an error refers to it."""

    name: str
    item: str


def queues_named(command: c.Command[Any]) -> Iterator[NamedItem]:
    for template, item in templates(command):
        yield NamedItem(template.queue, f"queue {template.queue!r} of {item}")
    match command:
        case c.Claim() | c.DueIn() | c.GetPolicies() | r.WatchQueues():
            for queue in command.queues:
                yield NamedItem(queue, f"queue {queue!r}")
        case c.Acquire():
            for request in command.requests:
                yield NamedItem(request.queue, f"queue {request.queue!r}")
        case c.GetKey() | c.GetLane() | c.ListLanes() | c.Pause() | c.Resume() | c.SetPolicy():
            yield NamedItem(command.queue, f"queue {command.queue!r}")
        case c.ListJobs() | c.Redrive() | c.Purge():
            if command.filter.queue is not None:
                yield NamedItem(command.filter.queue, f"queue {command.filter.queue!r}")
        case r.PublishPresence():
            for queue in queues_of_worker(command.record) or ():
                yield NamedItem(queue, f"queue {queue!r}")
        case c.SetLimit() | c.ClearLimit() | c.GetLimit():
            if command.name.startswith(QUEUE_LIMIT):
                yield NamedItem(command.name.removeprefix(QUEUE_LIMIT), f"limit {command.name!r}")
        case _:
            return


def queues_of_worker(record: bytes) -> Collection[str] | None:
    """Return the queues that a worker publishes it serves; None: the record cannot be read."""
    try:
        return decode_record(record).queues
    except MsgspecError:
        return None


def jobs_named(command: c.Command[Any]) -> list[str]:
    if isinstance(command, HolderReport | c.Death):
        return [report.job_id for report in reports_in(command)]
    match command:
        case c.GetJob() | r.WatchEnd():
            return [command.job_id]
        case c.Cancel():
            return list(command.job_ids)
        case c.ListJobs() | c.Redrive() | c.Purge():
            return list(command.filter.job_ids or ())
        case _:
            return []


def groups_named(command: c.Command[Any]) -> list[str]:
    found = [rules.group for rules in _rules(command) if rules.group is not None]
    match command:
        case c.SealGroup() | c.CancelGroup() | c.GetGroup():
            found.append(command.group_id)
        case c.CreateGroup() | c.ListGroups():
            if command.parent is not None:
                found.append(command.parent)
        case c.ListJobs() | c.Redrive() | c.Purge():
            if command.filter.group is not None:
                found.append(command.filter.group)
        case _:
            pass
    return list(dict.fromkeys(found))


def schedules_named(command: c.Command[Any]) -> list[str]:
    match command:
        case c.GetSchedule() | c.RemoveSchedule() | c.PauseSchedule() | c.ResumeSchedule() | c.FireNow() | c.Backfill():
            return [command.name]
        case c.SetSchedule():
            return [command.schedule.name]
        case c.FireTicks():
            return [fire.name for fire in command.fires]
        case _:
            return []


def templates(command: c.Command[Any]) -> Iterator[tuple[Template, str]]:
    """The jobs that a command makes, now or later."""
    match command:
        case c.Enqueue():
            for job in command.jobs:
                yield from _with_chain(job, f"job {job.id!r}")
        case c.Commit():
            for number, followup in enumerate(command.followups):
                yield from _with_chain(followup, f"follow-up {number}")
        case c.CreateGroup():
            for name, template in (("then", command.then), ("on_end", command.on_end)):
                if template is not None:
                    yield template, name
        case c.SetSchedule():
            yield from _with_chain(command.schedule.call, f"schedule {command.schedule.name!r}")
        case _:
            return


def _with_chain(template: JobSpec | c.Followup, item: str) -> Iterator[tuple[Template, str]]:
    yield template, item
    for chained in () if template.rules is None else template.rules.chain:
        yield chained, item


def template_queues(template: JobSpec) -> Iterable[str]:
    return (one.queue for one, _ in _with_chain(template, ""))


def _rules(command: c.Command[Any]) -> Iterator[Rules]:
    for template, _ in templates(command):
        if not isinstance(template, ChainedJob) and template.rules is not None:
            yield template.rules
