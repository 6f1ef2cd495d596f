"""The operators' verbs: cancel, redrive, purge, pause, resume, set_policy; decided by the kernel."""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, JobState
from leasemill.kernel.verbs.redrive import redriven_states
from leasemill.store.postgres import reading
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.decide import LockSet, decide
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.steps import Steps, Verb, transact


def cancel(context: VerbContext, command: c.Cancel) -> Verb[list[c.CancelOutcome]]:
    return context.decide(command, LockSet(command.job_ids))


def redrive(context: VerbContext, command: c.Redrive) -> Verb[c.Operated]:
    return _operate(context, command, redriven_states(command), makes_lanes=True)


def purge(context: VerbContext, command: c.Purge) -> Verb[c.Operated]:
    return _operate(context, command, ENDED_STATES, makes_lanes=False)


def change_queue(context: VerbContext, command: c.Pause | c.Resume | c.SetPolicy) -> Verb[None]:
    return context.decide(command, LockSet(queues=[command.queue]))


def _operate(
    context: VerbContext, command: c.Redrive | c.Purge, states: frozenset[JobState], *, makes_lanes: bool
) -> Verb[c.Operated]:
    """O6: not repeated if its answer is lost, for a repeat would be about the next jobs that fit."""
    operated = yield from transact(
        lambda _: _found_and_decided(context.known, command, states, makes_lanes=makes_lanes), is_repeatable=False
    )
    yield from context.follow_decision()
    return operated


def _found_and_decided(
    known: Known, command: c.Redrive | c.Purge, states: frozenset[JobState], *, makes_lanes: bool
) -> Steps[c.Operated]:
    """Found by reading, then decided under locks: what changed meanwhile is left alone."""
    jobs, after = yield from reading.fitting(command.filter, states, command.limit, command.after)
    ids = tuple(job.spec.id for job in jobs)
    if not ids:
        return c.Operated((), after)
    narrowed = replace(command, filter=replace(command.filter, job_ids=ids))
    operated = yield from decide(known, narrowed, LockSet(ids, makes_lanes=makes_lanes))
    return c.Operated(operated.job_ids, after, operated.held_back)
