"""Schedules: a transaction for each that is changed or fired. Lock its row, decide by the kernel, enqueue, save.

A second caller waits for the row and finds it moved (P2). What must never happen here: jobs of a tick without the
record that it was fired, or that record without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.machine import apply_all, run
from leasemill.kernel.model import JobSpec
from leasemill.kernel.schedule import Schedule, TickFire, hand_id, is_next, job_of_tick, plan, queues_of, tick_id
from leasemill.kernel.state import State
from leasemill.kernel.verbs.ticks import decide_backfilled, decide_fired, decide_fired_by_hand, may_backfill
from leasemill.store.postgres import reading
from leasemill.store.postgres.admission import lock
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.save import save_actions
from leasemill.store.postgres.known import Known, advisory_key
from leasemill.store.postgres.reading import schedule_of, schedule_text
from leasemill.store.postgres.rows.tables import QueueUse
from leasemill.store.postgres.rows.values import mode_of
from leasemill.store.postgres.steps import RetryTransaction, Steps, Verb, row, rows, send, transact, transaction
from leasemill.store.postgres.verbs.enqueue import enqueue_within, modes

AnswerT = TypeVar("AnswerT")


class _Row:
    """One schedule under its lock, as a small kernel state."""

    def __init__(self, schema: str, name: str, now: int, record: str | None) -> None:
        self._schema = schema
        self._name = name
        self.now = now
        self.state = State()
        if record is not None:
            self.state.schedules[name] = schedule_of(record)

    @property
    def schedule(self) -> Schedule | None:
        return self.state.schedules.get(self._name)

    def save(self, events: Sequence[AnyEvent]) -> Steps[None]:
        """Apply what was decided, and write it."""
        apply_all(self.state, events)
        yield from self.write(events)

    def write(self, events: Sequence[AnyEvent]) -> Steps[None]:
        if not events:
            return
        schedule = self.schedule
        if schedule is None:
            yield from rows("schedule_remove", {"name": self._name})
        else:
            given = {
                "name": self._name,
                "revision": schedule.revision,
                "next_at": schedule.next_at,
                "is_paused": schedule.pause is not None,
                "record": schedule_text(schedule).decode(),
            }
            yield from rows("schedule_save", given)
        yield from save_actions(self._schema, self.state)


def _lock(known: Known, name: str) -> Steps[_Row]:
    now, record = yield from row("schedule_lock", {"name": name})
    return _Row(known.schema, name, now, record)


def change(
    context: VerbContext, command: c.SetSchedule | c.RemoveSchedule | c.PauseSchedule | c.ResumeSchedule
) -> Verb[Schedule | c.ScheduleMoved | None]:
    """Run a command that changes a record and enqueues no job."""
    return transact(lambda _: transaction(_change(context.known, command)))


def _change(
    known: Known, command: c.SetSchedule | c.RemoveSchedule | c.PauseSchedule | c.ResumeSchedule
) -> Steps[Schedule | c.ScheduleMoved | None]:
    if not isinstance(command, c.SetSchedule):
        one = yield from _lock(known, command.name)
    else:
        name = command.schedule.name
        yield from send(lock(advisory_key(f"leasemill schedule {known.schema} {name}")))  # there may be no row to lock
        one = yield from _lock(known, name)
        for queue, use in (yield from modes(known, queues_of(command.schedule.call))).items():  # I7
            one.state.queue(queue).mode = mode_of(None if use is None else QueueUse(use))
    events, answer = run(one.state, command, one.now)
    yield from one.write(events)
    return answer


_Enqueue: TypeAlias = Callable[[Sequence[JobSpec]], Steps[list[c.EnqueueOutcome]]]
_Fire: TypeAlias = Callable[[_Row, _Enqueue], Steps[AnswerT]]


def fire_ticks(context: VerbContext, command: c.FireTicks) -> Verb[list[c.TickOutcome]]:
    outcomes: list[c.TickOutcome] = []
    for fire in command.fires:
        outcome = yield from _with_jobs(context, fire.name, _fired(context.known, fire))
        outcomes.append(outcome)
    return outcomes


def _fired(known: Known, fire: TickFire) -> _Fire[c.TickOutcome]:
    def decide(one: _Row, enqueue: _Enqueue) -> Steps[c.TickOutcome]:
        schedule = one.schedule
        if schedule is None or not is_next(schedule, fire, one.now):
            return c.ScheduleMoved(fire.name, schedule)
        jobs = (yield from reading.read_jobs(ids=list(schedule.open_ids))) if schedule.open_ids else []
        states = {job.spec.id: job.state for job in jobs}
        uses = yield from modes(known, queues_of(schedule.spec.call) - known.claim_queues)
        is_refused = QueueUse.ACQUIRE in uses.values()
        planned = plan(schedule, fire, one.now, states.get, is_refused=is_refused)
        try:
            outcomes = yield from enqueue(planned.jobs)
        except QueueRefused as error:
            raise RetryTransaction("the queue has just been used with acquire") from error
        events, outcome = decide_fired(fire, planned, outcomes, one.now)
        yield from one.save(events)
        return outcome

    return decide


def fire_now(context: VerbContext, command: c.FireNow) -> Verb[c.EnqueueOutcome | None]:
    def decide(one: _Row, enqueue: _Enqueue) -> Steps[c.EnqueueOutcome | None]:
        if one.schedule is None:
            return None
        (enqueued,) = yield from enqueue([job_of_tick(one.schedule.spec, hand_id(command.name, command.wall))])
        events, outcome = decide_fired_by_hand(command, enqueued, one.now)
        yield from one.save(events)
        return outcome

    return _with_jobs(context, command.name, decide)


def backfill(context: VerbContext, command: c.Backfill) -> Verb[list[c.EnqueueOutcome] | c.ScheduleMoved]:
    def decide(one: _Row, enqueue: _Enqueue) -> Steps[list[c.EnqueueOutcome] | c.ScheduleMoved]:
        schedule = one.schedule
        if schedule is None or not may_backfill(schedule, command):
            return c.ScheduleMoved(command.name, schedule)
        jobs = [job_of_tick(schedule.spec, tick_id(command.name, tick)) for tick in command.ticks]
        enqueued = yield from enqueue(jobs)
        events, outcomes = decide_backfilled(command, enqueued, one.now)
        yield from one.save(events)
        return outcomes

    return _with_jobs(context, command.name, decide)


def _with_jobs(context: VerbContext, name: str, decide: _Fire[AnswerT]) -> Verb[AnswerT]:
    """Decide on one schedule; its jobs are enqueued in the same transaction."""
    known, channel = context.known, context.notifier.channel()
    new: list[JobSpec] = []

    def enqueue(jobs: Sequence[JobSpec]) -> Steps[list[c.EnqueueOutcome]]:
        if not jobs:
            return []
        outcomes = yield from enqueue_within(known, jobs, channel)
        new.extend(job for job, one in zip(jobs, outcomes, strict=True) if isinstance(one, c.Enqueued))
        return outcomes

    def steps() -> Steps[AnswerT]:
        new.clear()
        one = yield from _lock(known, name)
        return (yield from decide(one, enqueue))

    answer = yield from transact(lambda _: transaction(steps()))
    known.learn_uses(new)
    context.signal.notify()
    return answer
