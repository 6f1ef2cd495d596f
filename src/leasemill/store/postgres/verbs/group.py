"""create_group, seal_group and cancel_group. Counting is done where members are added and where they end."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import UNENDED_STATES, Job, JobSpec, JobState, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.transitions.groups import chained_spec, end_id, rules_of_chained, then_id
from leasemill.store.postgres import reading
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.decide import Concern, decide, decide_group
from leasemill.store.postgres.exact.groups import group_of
from leasemill.store.postgres.exact.tables import QueueUse
from leasemill.store.postgres.exact.values import template_text
from leasemill.store.postgres.verbs.enqueue import fix_uses, modes
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.connections import Connection, Moved


def create(calls: Calls, command: c.CreateGroup) -> c.OpenedGroup:
    """Decided by the kernel on the groups it names, the queues of its callbacks, and whether these are there."""
    database = calls.database
    callbacks = _callbacks(command)

    def work(connection: Connection) -> c.OpenedGroup:
        with connection.transaction():
            state, now = _known(database, connection, command, callbacks)
            events, opened = run(state, command, now)
            if events:
                _insert(database, connection, command, now, callbacks)
        return opened

    opened = calls.connections.run(work)
    database.learn_uses(callbacks)
    return opened


def _callbacks(command: c.CreateGroup) -> list[JobSpec]:
    named = ((command.then, then_id(command.group_id)), (command.on_end, end_id(command.group_id)))
    return [
        chained_spec(job_id, template, rules=rules_of_chained(template, command.parent, ()))
        for template, job_id in named
        if template is not None
    ]


def _known(
    database: Database, connection: Connection, command: c.CreateGroup, callbacks: list[JobSpec]
) -> tuple[State, int]:
    state = State()
    ids = [command.group_id] if command.parent is None else [command.group_id, command.parent]
    database.all(connection, "share_groups", {"groups": texts(ids[1:])})
    for row in reading.load_groups(database, connection, ids):
        state.groups[row.id] = group_of(row)
    names = {job.queue for job in callbacks}
    for name, mode in modes(database, connection, names).items():
        state.queue(name).mode = QueueMode.ACQUIRE if mode == QueueUse.ACQUIRE else None
    (now,) = database.one(connection, "clock", {})
    for job in reading.read_jobs(database, connection, ids=[job.id for job in callbacks]) if callbacks else ():
        state.jobs[job.spec.id] = Job(job.spec, 0, now, now, now)
    return state, now


def _insert(
    database: Database, connection: Connection, command: c.CreateGroup, now: int, callbacks: list[JobSpec]
) -> None:
    given = {
        "id": command.group_id,
        "then_job": template_text(command.then),
        "end_job": template_text(command.on_end),
        "parent": command.parent,
    }
    if not database.all(connection, "create_group", given):
        raise Moved(f"group {command.group_id!r} was created meanwhile")
    if not database.has_rules:
        database.do(connection, "use_rules", {})
    fix_uses(database, connection, {job.queue for job in callbacks}, callbacks)


def seal(calls: Calls, command: c.SealGroup) -> c.GroupView:
    def work(connection: Connection) -> c.GroupView:
        return decide_group(calls.database, connection, command, Concern(groups=[command.group_id]))

    sealed = calls.connections.run(work)
    calls.follow_decision()
    return sealed


def cancel(calls: Calls, command: c.CancelGroup) -> c.Operated:
    """Sealed first, in a transaction of its own: who adds members is waited for while no member is locked."""
    database = calls.database
    seal(calls, c.SealGroup(command.group_id))

    def work(connection: Connection) -> c.Operated:
        wanted = c.JobFilter(group=command.group_id)
        jobs, after = reading.fitting(database, connection, wanted, UNENDED_STATES, command.limit, command.after)
        if not jobs:
            return c.Operated((), after)
        ids = [job.spec.id for job in jobs]
        outcomes = decide(database, connection, c.Cancel(ids, command.by, command.reason), Concern(ids))
        cancelled = [outcome for outcome in outcomes if isinstance(outcome, c.Cancelled) and not outcome.is_repeat]
        if after is None and any(outcome.state is JobState.SUCCEEDED for outcome in cancelled):
            after = jobs[-1].seq  # B6: it had committed, and the next of its chain is a member too
        return c.Operated(tuple(outcome.job_id for outcome in cancelled), after)

    operated = calls.connections.run(work, is_repeatable=False)
    calls.follow_decision()
    return operated
