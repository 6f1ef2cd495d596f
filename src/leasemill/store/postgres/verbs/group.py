"""create_group, seal_group and cancel_group. Counting is done where members are added and where they end."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import UNENDED_STATES, Job, JobSpec, JobState, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.transitions.groups import chained_spec, end_id, rules_of_chained, then_id
from leasemill.store.postgres import reading
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.decide import LockSet, decide, decide_group
from leasemill.store.postgres.exact.groups import group_of
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.rows.tables import QueueUse
from leasemill.store.postgres.rows.values import template_text
from leasemill.store.postgres.steps import RetryTransaction, Steps, Verb, row, rows, transact, transaction
from leasemill.store.postgres.verbs.enqueue import fix_uses, modes


def create(context: VerbContext, command: c.CreateGroup) -> Verb[c.OpenedGroup]:
    """Decided by the kernel on the groups it names, the queues of its callbacks, and whether these are there."""
    known = context.known
    callbacks = _callbacks(command)
    opened = yield from transact(lambda _: transaction(_create(known, command, callbacks)))
    known.learn_uses(callbacks)
    return opened


def _create(known: Known, command: c.CreateGroup, callbacks: list[JobSpec]) -> Steps[c.OpenedGroup]:
    state, now = yield from _load(known, command, callbacks)
    events, opened = run(state, command, now)
    if events:
        yield from _insert(known, command, callbacks)
    return opened


def _callbacks(command: c.CreateGroup) -> list[JobSpec]:
    named = ((command.then, then_id(command.group_id)), (command.on_end, end_id(command.group_id)))
    return [
        chained_spec(job_id, template, rules=rules_of_chained(template, command.parent, ()))
        for template, job_id in named
        if template is not None
    ]


def _load(known: Known, command: c.CreateGroup, callbacks: list[JobSpec]) -> Steps[tuple[State, int]]:
    state = State()
    ids = [command.group_id] if command.parent is None else [command.group_id, command.parent]
    yield from rows("share_groups", {"groups": list(ids[1:])})
    for found in (yield from reading.load_groups(ids)):
        state.groups[found.id] = group_of(found)
    for name, mode in (yield from modes(known, {job.queue for job in callbacks})).items():
        state.queue(name).mode = QueueMode.ACQUIRE if mode == QueueUse.ACQUIRE else None
    (now,) = yield from row("clock", {})
    for job in (yield from reading.read_jobs(ids=[job.id for job in callbacks])) if callbacks else ():
        state.jobs[job.spec.id] = Job(job.spec, 0, now, now, now)
    return state, now


def _insert(known: Known, command: c.CreateGroup, callbacks: list[JobSpec]) -> Steps[None]:
    given = {
        "id": command.group_id,
        "then_job": template_text(command.then),
        "end_job": template_text(command.on_end),
        "parent": command.parent,
    }
    if not (yield from rows("create_group", given)):
        raise RetryTransaction(f"group {command.group_id!r} was created meanwhile")
    if not known.has_rules:
        yield from rows("use_rules", {})
    yield from fix_uses(known, {job.queue for job in callbacks}, callbacks)


def seal(context: VerbContext, command: c.SealGroup) -> Verb[c.GroupView]:
    sealed = yield from transact(lambda _: decide_group(context.known, command, LockSet(groups=[command.group_id])))
    yield from context.follow_decision()
    return sealed


def cancel(context: VerbContext, command: c.CancelGroup) -> Verb[c.Operated]:
    """Sealed first, in a transaction of its own: who adds members is waited for while no member is locked."""
    yield from seal(context, c.SealGroup(command.group_id))
    operated = yield from transact(lambda _: _cancel(context.known, command), is_repeatable=False)
    yield from context.follow_decision()
    return operated


def _cancel(known: Known, command: c.CancelGroup) -> Steps[c.Operated]:
    wanted = c.JobFilter(group=command.group_id)
    jobs, after = yield from reading.fitting(wanted, UNENDED_STATES, command.limit, command.after)
    if not jobs:
        return c.Operated((), after)
    ids = [job.spec.id for job in jobs]
    outcomes = yield from decide(known, c.Cancel(ids, command.by, command.reason), LockSet(ids))
    cancelled = [outcome for outcome in outcomes if isinstance(outcome, c.Cancelled) and not outcome.is_repeat]
    if after is None and any(outcome.state is JobState.SUCCEEDED for outcome in cancelled):
        after = jobs[-1].seq  # B6: it had committed, and the next of its chain is a member too
    return c.Operated(tuple(outcome.job_id for outcome in cancelled), after)
