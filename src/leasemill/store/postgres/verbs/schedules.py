"""Schedules: a transaction for each that is changed or fired. Lock its row, decide by the kernel, enqueue, save.

A second caller waits for the row and finds it moved (P2). What must never happen here: jobs of a tick without the
record that it was fired, or that record without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.machine import apply_all, run
from leasemill.kernel.model import JobSpec
from leasemill.kernel.schedule import Schedule, TickFire, hand_id, is_next, job_of_tick, plan, queues_of, tick_id
from leasemill.kernel.state import State
from leasemill.kernel.verbs.ticks import decide_backfilled, decide_fired, decide_fired_by_hand, may_backfill
from leasemill.store.postgres import reading
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, advisory_key
from leasemill.store.postgres.exact.save import save_actions
from leasemill.store.postgres.exact.tables import QueueUse
from leasemill.store.postgres.exact.values import mode_of
from leasemill.store.postgres.schedules import schedule_of, schedule_text
from leasemill.store.postgres.verbs.enqueue import enqueue_within, modes
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection, Moved

AnswerT = TypeVar("AnswerT")


class _Row:
    """One schedule under its lock, as a small kernel state."""

    def __init__(self, database: Database, connection: Connection, name: str) -> None:
        self._database = database
        self._connection = connection
        self._name = name
        self.now, record = database.one(connection, "schedule_lock", {"name": name})
        self.state = State()
        if record is not None:
            self.state.schedules[name] = schedule_of(record)

    @property
    def schedule(self) -> Schedule | None:
        return self.state.schedules.get(self._name)

    def learn_queues(self, queues: set[str]) -> None:
        """I7: how the queues of its jobs are used."""
        for name, use in modes(self._database, self._connection, queues).items():
            self.state.queue(name).mode = mode_of(None if use is None else QueueUse(use))

    def save(self, events: Sequence[AnyEvent]) -> None:
        """Apply what was decided, and write it."""
        apply_all(self.state, events)
        self.write(events)

    def write(self, events: Sequence[AnyEvent]) -> None:
        if not events:
            return
        schedule, database = self.schedule, self._database
        if schedule is None:
            database.do(self._connection, "schedule_remove", {"name": self._name})
        else:
            given = {
                "name": self._name,
                "revision": int8(schedule.revision),
                "next_at": int8(schedule.next_at),
                "is_paused": schedule.pause is not None,
                "record": schedule_text(schedule).decode(),
            }
            database.do(self._connection, "schedule_save", given)
        save_actions(database, self._connection, self.state)


def change(
    calls: Calls, command: c.SetSchedule | c.RemoveSchedule | c.PauseSchedule | c.ResumeSchedule
) -> Schedule | c.ScheduleMoved | None:
    """What changes a record and makes no job."""
    database = calls.database
    name = command.schedule.name if isinstance(command, c.SetSchedule) else command.name

    def work(connection: Connection) -> Schedule | c.ScheduleMoved | None:
        with connection.transaction():
            if isinstance(command, c.SetSchedule):  # it may be new, and then there is no row to lock
                key = advisory_key(f"leasemill schedule {database.statements.schema} {name}")
                connection.execute("select pg_advisory_xact_lock(%s)", [int8(key)])
            row = _Row(database, connection, name)
            if isinstance(command, c.SetSchedule):
                row.learn_queues(queues_of(command.schedule.call))
            events, answer = run(row.state, command, row.now)
            row.write(events)
        return answer

    return calls.connections.run(work)


def fire_ticks(calls: Calls, command: c.FireTicks) -> list[c.TickOutcome]:
    return [_making_jobs(calls, fire.name, _fire(fire)) for fire in command.fires]


_Enqueue = Callable[[Sequence[JobSpec]], list[c.EnqueueOutcome]]


def _fire(fire: TickFire) -> Callable[[_Row, Database, Connection, _Enqueue], c.TickOutcome]:
    def decide(row: _Row, database: Database, connection: Connection, enqueue: _Enqueue) -> c.TickOutcome:
        schedule = row.schedule
        if schedule is None or not is_next(schedule, fire, row.now):
            return c.ScheduleMoved(fire.name, schedule)
        jobs = reading.read_jobs(database, connection, ids=list(schedule.open_ids)) if schedule.open_ids else []
        states = {job.spec.id: job.state for job in jobs}
        uses = modes(database, connection, queues_of(schedule.spec.call) - database.claim_queues)
        is_refused = QueueUse.ACQUIRE in uses.values()
        planned = plan(schedule, fire, row.now, states.get, is_refused=is_refused)
        try:
            outcomes = enqueue(planned.jobs)
        except QueueRefused as error:
            raise Moved("the queue has just been used with acquire") from error
        events, outcome = decide_fired(fire, planned, outcomes, row.now)
        row.save(events)
        return outcome

    return decide


def fire_now(calls: Calls, command: c.FireNow) -> c.EnqueueOutcome | None:
    def decide(row: _Row, _database: Database, _connection: Connection, enqueue: _Enqueue) -> c.EnqueueOutcome | None:
        if row.schedule is None:
            return None
        (made,) = enqueue([job_of_tick(row.schedule.spec, hand_id(command.name, command.wall))])
        events, outcome = decide_fired_by_hand(command, made, row.now)
        row.save(events)
        return outcome

    return _making_jobs(calls, command.name, decide)


def backfill(calls: Calls, command: c.Backfill) -> list[c.EnqueueOutcome] | c.ScheduleMoved:
    def decide(
        row: _Row, _database: Database, _connection: Connection, enqueue: _Enqueue
    ) -> list[c.EnqueueOutcome] | c.ScheduleMoved:
        schedule = row.schedule
        if schedule is None or not may_backfill(schedule, command):
            return c.ScheduleMoved(command.name, schedule)
        made = enqueue([job_of_tick(schedule.spec, tick_id(command.name, tick)) for tick in command.ticks])
        events, outcomes = decide_backfilled(command, made, row.now)
        row.save(events)
        return outcomes

    return _making_jobs(calls, command.name, decide)


def _making_jobs(calls: Calls, name: str, decide: Callable[[_Row, Database, Connection, _Enqueue], AnswerT]) -> AnswerT:
    """Decide on one schedule; its jobs are enqueued in the same transaction."""
    database, channel = calls.database, calls.notifier.channel()

    def work(connection: Connection) -> AnswerT:
        new: list[JobSpec] = []

        def enqueue(jobs: Sequence[JobSpec]) -> list[c.EnqueueOutcome]:
            if not jobs:
                return []
            outcomes = enqueue_within(database, connection, jobs, channel)
            new.extend(job for job, one in zip(jobs, outcomes, strict=True) if isinstance(one, c.Enqueued))
            return outcomes

        with connection.transaction():
            answer = decide(_Row(database, connection, name), database, connection, enqueue)
        database.learn_uses(new)
        return answer

    answer = calls.connections.run(work)
    calls.signal.notify()
    return answer
