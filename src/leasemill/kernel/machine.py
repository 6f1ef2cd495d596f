"""One command, start to end: decide, apply, answer.

`run` is what a store calls with its lock held. It may refuse (raise) only before anything is applied; afterwards the
events it returns have been applied to the state and must be made durable, or the state thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from leasemill.kernel import commands as c
from leasemill.kernel import decide, operate, read
from leasemill.kernel.apply import apply
from leasemill.kernel.decide import Decision
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import State

AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT")
OutcomeT = TypeVar("OutcomeT")

Events = list[AnyEvent]


def run(state: State, command: c.Command[AnswerT], now: int) -> tuple[Events, AnswerT]:
    """Carry out a command; answers with what happened and what to tell the caller."""
    events: Events = []
    answer: AnswerT = _HANDLERS[type(command)](state, command, now, events)
    return events, answer


def _each(
    state: State,
    items: Sequence[ItemT],
    decide_one: Callable[[State, ItemT, int], Decision[OutcomeT]],
    now: int,
    events: Events,
) -> list[OutcomeT]:
    """One outcome for each item; an item sees what the ones before it did."""
    outcomes: list[OutcomeT] = []
    for item in items:
        made, outcome = decide_one(state, item, now)
        for event in made:
            apply(state, event)
            events.append(event)
        outcomes.append(outcome)
    return outcomes


def _at_once(state: State, decision: Decision[OutcomeT], events: Events) -> OutcomeT:
    made, outcome = decision
    for event in made:
        apply(state, event)
        events.append(event)
    return outcome


def _enqueue(state: State, command: c.Enqueue, now: int, events: Events) -> list[c.EnqueueOutcome]:
    for name in {job.queue for job in command.jobs}:
        decide.check_enqueue_queue(state, name)
    return _each(state, command.jobs, decide.enqueue, now, events)


def _claim(state: State, command: c.Claim, now: int, events: Events) -> list[c.Lease]:
    for name in command.queues:
        decide.check_claim_queue(state, name)
    leases = _at_once(state, decide.claim(state, command, now), events)
    if leases or not _at_once(state, decide.expire(state, command.limit, now), events):
        return leases
    return _at_once(state, decide.claim(state, command, now), events)  # L7: what has expired is claimable again


def _acquire(state: State, command: c.Acquire, now: int, events: Events) -> list[c.AcquireOutcome]:
    for name in {request.queue for request in command.requests}:
        decide.check_acquire_queue(state, name)
    for request in command.requests:
        decide.check_acquire(state, request, now)
    outcomes: list[c.AcquireOutcome] = []
    for request in command.requests:
        _at_once(state, decide.expire_head(state, request, now), events)
        outcomes.append(_at_once(state, decide.acquire(state, request, now), events))
    return outcomes


def _cancel(state: State, command: c.Cancel, now: int, events: Events) -> list[c.CancelOutcome]:
    def one(state: State, job_id: str, now: int) -> Decision[c.CancelOutcome]:
        return operate.cancel(state, job_id, command, now)

    return _each(state, command.job_ids, one, now, events)


_HANDLERS: Final[dict[type, Callable[[State, Any, int, Events], Any]]] = {
    c.Enqueue: _enqueue,
    c.Claim: _claim,
    c.Start: lambda state, it, now, events: _each(state, it.reports, decide.start, now, events),
    c.Extend: lambda state, it, now, events: _each(state, it.leases, decide.extend, now, events),
    c.Commit: lambda state, it, now, events: _at_once(state, decide.commit(state, it, now), events),
    c.Ack: lambda state, it, now, events: _each(state, it.reports, decide.ack, now, events),
    c.Nack: lambda state, it, now, events: _each(state, it.reports, decide.nack, now, events),
    c.Release: lambda state, it, now, events: _each(state, it.reports, decide.release, now, events),
    c.Expire: lambda state, it, now, events: _at_once(state, decide.expire(state, it.limit, now), events),
    c.Acquire: _acquire,
    c.Cancel: _cancel,
    c.Redrive: lambda state, it, now, events: _at_once(state, operate.redrive(state, it, now), events),
    c.Purge: lambda state, it, now, events: _at_once(state, operate.purge(state, it, now), events),
    c.Pause: lambda state, it, now, events: _at_once(state, operate.pause(state, it, now), events),
    c.Resume: lambda state, it, now, events: _at_once(state, operate.resume(state, it, now), events),
    c.SetPolicy: lambda state, it, now, events: _at_once(state, operate.set_policy(state, it, now), events),
    c.Prune: lambda state, it, now, events: _at_once(state, operate.prune(state, it, now), events),
    c.GetJob: lambda state, it, _now, _events: read.get_job(state, it),
    c.ListJobs: lambda state, it, _now, _events: read.list_jobs(state, it),
    c.ListQueues: lambda state, it, _now, _events: read.list_queues(state, it),
    c.GetLane: lambda state, it, _now, _events: read.get_lane(state, it),
    c.ListLanes: lambda state, it, _now, _events: read.list_lanes(state, it),
    c.ListActions: lambda state, it, _now, _events: read.list_actions(state, it),
    c.DueIn: lambda state, it, now, _events: read.due_in(state, it, now),
    c.GetTotals: lambda state, _it, _now, _events: read.totals(state),
}
