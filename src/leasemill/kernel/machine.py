"""The machine that runs a command from start to end: check, decide, apply, answer.

A store calls `check` when a command arrives and `run` with its lock held. `run` may refuse (raise) only before anything
is applied; afterwards the events it returns have been applied to the state and must be made durable, or the state
thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from leasemill.kernel import bounds, consequences, read
from leasemill.kernel import commands as c
from leasemill.kernel import events as e
from leasemill.kernel.command import Decision, Do
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import CLOCK_FORMAT, DEATHS_FORMAT, ORDERS_FORMAT, PLAIN_FORMAT, RULES_FORMAT, State
from leasemill.kernel.transitions import executions, fence, grant, unique
from leasemill.kernel.verbs import (
    ack,
    acquire,
    cancel,
    claim,
    clock,
    commit,
    death,
    enqueue,
    expire,
    extend,
    group,
    limits,
    nack,
    purge,
    queues,
    redrive,
    release,
    schedules,
    start,
    ticks,
    worker_commands,
)

AnswerT = TypeVar("AnswerT")
OutcomeT = TypeVar("OutcomeT")
Events: TypeAlias = list[AnyEvent]
Decide: TypeAlias = Callable[[State, Any, int], Decision[Any]]
Run: TypeAlias = Callable[[State, Any, int, Events], Any]
Apply: TypeAlias = Callable[[State, Any], None]


class EventRules(NamedTuple):
    """The format of the log that knows the event (W16), and how it is applied."""

    format: int
    apply: Apply


class VerbRules(NamedTuple):
    """The functions that check a command and carry it out."""

    check: Callable[[Any], None]
    run: Run


def _once(decide: Decide) -> Run:
    """The command is one decision."""

    def run(state: State, command: Any, now: int, events: Events) -> Any:
        made, outcome = decide(state, command, now)
        for event in made:
            APPLIERS[type(event)](state, event)
        events += made
        if state.due:
            _follow(state, now, events)
        return outcome

    return run


def _each(items: str, decide: Decide, refuse: Callable[[State, Any], None] | None = None) -> Run:
    """E6: one decision for each of the command's items; an item sees what those before it did. `refuse` comes first."""

    def run(state: State, command: Any, now: int, events: Events) -> list[Any]:
        if refuse is not None:
            refuse(state, command)
        outcomes: list[Any] = []
        for item in getattr(command, items):
            made, outcome = decide(state, item, now)
            for event in made:
                APPLIERS[type(event)](state, event)
            events += made
            if state.due:
                _follow(state, now, events)
            outcomes.append(outcome)
        return outcomes

    return run


def _steps(steps: Callable[[State, Any, int, Do], Any]) -> Run:
    """The command is several decisions, each on the state that the one before it left."""

    def run(state: State, command: Any, now: int, events: Events) -> Any:
        def do(decision: Decision[OutcomeT]) -> OutcomeT:
            made, outcome = decision
            for event in made:
                APPLIERS[type(event)](state, event)
            events.extend(made)
            if state.due:
                _follow(state, now, events)
            return outcome

        return steps(state, command, now, do)

    return run


def _follow(state: State, now: int, events: Events) -> None:
    """B2, B6: what ended jobs and groups cause, in the same fact."""

    def do(decision: Decision[OutcomeT]) -> OutcomeT:
        made, outcome = decision
        for event in made:
            APPLIERS[type(event)](state, event)
        events.extend(made)
        return outcome

    consequences.follow(state, now, do)


def _raising_format(number: int, apply: Apply) -> Apply:
    """W16: an event that is applied is in the log from then on."""
    if number == PLAIN_FORMAT:
        return apply

    def raising(state: State, event: Any) -> None:
        apply(state, event)
        state.require_format(number)

    return raising


VERBS: Final[dict[type, VerbRules]] = {
    c.Enqueue: VerbRules(enqueue.check, _each("jobs", enqueue.decide, enqueue.refuse)),
    c.Claim: VerbRules(claim.check, _steps(claim.steps)),
    c.Acquire: VerbRules(acquire.check, _steps(acquire.steps)),
    c.Start: VerbRules(start.check, _each("reports", start.decide)),
    c.Extend: VerbRules(extend.check, _each("leases", extend.decide)),
    c.Commit: VerbRules(commit.check, _once(commit.decide)),
    c.Ack: VerbRules(ack.check, _each("reports", ack.decide)),
    c.Nack: VerbRules(nack.check, _each("reports", nack.decide)),
    c.Release: VerbRules(release.check, _each("reports", release.decide)),
    c.Expire: VerbRules(bounds.check_limit, _once(expire.decide)),
    c.Death: VerbRules(death.check, _each("reports", death.decide)),
    c.Cancel: VerbRules(cancel.check, _steps(cancel.steps)),
    c.Redrive: VerbRules(redrive.check, _once(redrive.decide)),
    c.Purge: VerbRules(purge.check_purge, _once(purge.decide_purge)),
    c.Prune: VerbRules(purge.check_prune, _once(purge.decide_prune)),
    c.Pause: VerbRules(queues.check, _once(queues.decide_pause)),
    c.Resume: VerbRules(queues.check, _once(queues.decide_resume)),
    c.SetPolicy: VerbRules(queues.check, _once(queues.decide_policy)),
    c.OrderWorker: VerbRules(worker_commands.check, _once(worker_commands.decide)),
    c.CreateGroup: VerbRules(group.check_create, _once(group.decide_create)),
    c.SealGroup: VerbRules(group.check_seal, _steps(group.seal_steps)),
    c.CancelGroup: VerbRules(group.check_cancel, _steps(group.cancel_steps)),
    c.SetLimit: VerbRules(limits.check_set, _once(limits.decide_set)),
    c.ClearLimit: VerbRules(limits.check_clear, _once(limits.decide_clear)),
    c.DeclareLimits: VerbRules(limits.check_declare, _once(limits.decide_declare)),
    c.SetSchedule: VerbRules(schedules.check_set, _once(schedules.decide_set)),
    c.RemoveSchedule: VerbRules(schedules.check_named, _once(schedules.decide_remove)),
    c.PauseSchedule: VerbRules(schedules.check_named, _once(schedules.decide_pause)),
    c.ResumeSchedule: VerbRules(schedules.check_resume, _once(schedules.decide_resume)),
    c.FireTicks: VerbRules(ticks.check_fires, _steps(ticks.fire_steps)),
    c.FireNow: VerbRules(ticks.check_fire_now, _steps(ticks.fire_now_steps)),
    c.Backfill: VerbRules(ticks.check_backfill, _steps(ticks.backfill_steps)),
}

EVENTS: Final[dict[type, EventRules]] = {
    e.JobEnqueued: EventRules(PLAIN_FORMAT, enqueue.apply),
    e.LeaseGranted: EventRules(PLAIN_FORMAT, grant.apply),
    e.ExecutionStarted: EventRules(PLAIN_FORMAT, start.apply),
    e.LeaseExtended: EventRules(PLAIN_FORMAT, extend.apply),
    e.ExecutionCommitted: EventRules(PLAIN_FORMAT, commit.apply),
    e.ExecutionDone: EventRules(PLAIN_FORMAT, executions.apply),
    e.ExecutionFailed: EventRules(PLAIN_FORMAT, nack.apply_failed),
    e.FailureKept: EventRules(PLAIN_FORMAT, nack.apply_failure_kept),
    e.LeaseReleased: EventRules(PLAIN_FORMAT, release.apply),
    e.LeaseExpired: EventRules(PLAIN_FORMAT, expire.apply),
    e.HolderDied: EventRules(DEATHS_FORMAT, death.apply),
    e.ReportRefused: EventRules(PLAIN_FORMAT, fence.apply),
    e.JobCancelled: EventRules(PLAIN_FORMAT, cancel.apply),
    e.JobRedriven: EventRules(PLAIN_FORMAT, redrive.apply),
    e.JobPurged: EventRules(PLAIN_FORMAT, purge.apply_purged),
    e.JobsPruned: EventRules(PLAIN_FORMAT, purge.apply_pruned),
    e.JobReplaced: EventRules(RULES_FORMAT, unique.apply_replaced),
    e.QueuePaused: EventRules(PLAIN_FORMAT, queues.apply_paused),
    e.QueueResumed: EventRules(PLAIN_FORMAT, queues.apply_resumed),
    e.QueuePolicySet: EventRules(PLAIN_FORMAT, queues.apply_policy),
    e.GroupCreated: EventRules(RULES_FORMAT, group.apply_created),
    e.GroupSealed: EventRules(RULES_FORMAT, group.apply_sealed),
    e.GroupEnded: EventRules(RULES_FORMAT, group.apply_ended),
    e.GroupsPruned: EventRules(RULES_FORMAT, group.apply_pruned),
    e.LimitSet: EventRules(RULES_FORMAT, limits.apply_set),
    e.LimitCleared: EventRules(RULES_FORMAT, limits.apply_cleared),
    e.LimitDeclared: EventRules(RULES_FORMAT, limits.apply_declared),
    e.RateCharged: EventRules(RULES_FORMAT, limits.apply_charged),
    e.RateHeld: EventRules(RULES_FORMAT, limits.apply_charged),
    e.ScheduleSet: EventRules(RULES_FORMAT, schedules.apply_set),
    e.ScheduleRemoved: EventRules(RULES_FORMAT, schedules.apply_removed),
    e.SchedulePaused: EventRules(RULES_FORMAT, schedules.apply_paused),
    e.ScheduleResumed: EventRules(RULES_FORMAT, schedules.apply_resumed),
    e.ScheduleFired: EventRules(RULES_FORMAT, ticks.apply_fired),
    e.ScheduleFiredByHand: EventRules(RULES_FORMAT, ticks.apply_fired_by_hand),
    e.ScheduleBackfilled: EventRules(RULES_FORMAT, ticks.apply_backfilled),
    e.WorkerOrdered: EventRules(ORDERS_FORMAT, worker_commands.apply),
    e.ClockSet: EventRules(CLOCK_FORMAT, clock.apply),
}

APPLIERS: Final[dict[type, Apply]] = {kind: _raising_format(*rules) for kind, rules in EVENTS.items()}
"""The function that applies each event, with its format."""


def check(command: c.Command[Any]) -> None:
    """Refuse a command that is not well formed."""
    rules = VERBS.get(type(command))
    if rules is None:
        read.check(command)
    else:
        rules.check(command)


def run(state: State, command: c.Command[AnswerT], now: int) -> tuple[Events, AnswerT]:
    """Carry out a command; returns the events, which have been applied, and the answer for the caller."""
    events: Events = []
    rules = VERBS.get(type(command))
    if rules is None:
        answer: AnswerT = read.ANSWERS[type(command)](state, command, now)
    else:
        answer = rules.run(state, command, now, events)
    return events, answer


def carry_out(state: State, events: Iterable[AnyEvent], now: int) -> Events:
    """Apply events that were decided outside of a command, and what they cause; returns all of them."""
    applied: Events = []
    for event in events:
        APPLIERS[type(event)](state, event)
        applied.append(event)
    if state.due:
        _follow(state, now, applied)
    return applied


def apply(state: State, event: AnyEvent) -> None:
    """Apply one event of the past; what it caused follows in the same log."""
    APPLIERS[type(event)](state, event)
    if state.due:
        state.due.clear()


def apply_all(state: State, events: Iterable[AnyEvent]) -> None:
    """Apply events of the past, in order."""
    for event in events:
        APPLIERS[type(event)](state, event)
    if state.due:
        state.due.clear()
