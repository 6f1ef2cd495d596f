"""Enqueues of one process that share a statement and a commit.

Whoever comes first sends at once; those that come while it is under way make the next batch. There is no timer, so one
caller alone waits for nobody. One batch reports an outcome for each job; what makes a batch fail as a whole is left to
its callers, each in a transaction of its own. Only what waits for nobody is shared: calls with drawn ids in one line,
those with ids of their own, which may be in somebody's open transaction, in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from psycopg.errors import LockNotAvailable

from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store import pipeline
from leasemill.store.postgres.admission import ADMITTED_AT_ONCE
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.steps import follow
from leasemill.store.postgres.verbs.inserting import columns, columns_of_one, is_plain, outcomes_of
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.batch import Sent
from leasemill.store.postgres.wire.connections import Connection, Row

SHARED_JOBS: Final = 100
"""A call of more jobs is a batch of its own."""
SHARED_WEIGHT: Final = 256 * 1024
JOB_BYTES: Final = 1_000
"""What a job weighs beside its payload."""
BRIEF: Final[Sent] = b"select set_config('lock_timeout', '100', true)", ()
"""How long, in milliseconds, a batch waits for somebody who has one of its ids in an open transaction."""


class EnqueueTicket(pipeline.Ticket, eq=False):
    """A call. `is_alone`: its caller sends it in a transaction of its own."""

    command: c.Enqueue
    is_alone: bool = False


class Inserted(NamedTuple):
    """The result of the statement of a batch: how many were new and, if not all, which."""

    number: int
    ids: Sequence[str] | None


def ticket(database: Database, command: c.Enqueue) -> EnqueueTicket | None:
    """None: it cannot be shared."""
    jobs = command.jobs
    if not 0 < len(jobs) <= SHARED_JOBS or not database.knows_uses(jobs):
        return None
    weight = 0
    for job in jobs:
        weight += JOB_BYTES + len(job.payload)
        rules = job.rules
        if rules is not None and (rules.unique is not None or rules.group is not None or rules.chain):
            return None
    return EnqueueTicket(command, weight) if weight <= SHARED_WEIGHT else None


class SharedBatch:
    """Calls that were taken together."""

    def __init__(self, tickets: Sequence[EnqueueTicket]) -> None:
        self.tickets = tickets
        self.jobs = [job for ticket in tickets for job in ticket.command.jobs]
        self._first: dict[str, JobSpec] = {}
        for job in self.jobs:
            self._first.setdefault(job.id, job)
        self._are_new = all(ticket.command.are_new for ticket in tickets)
        self._have_lanes = any(job.lane is not None for job in self.jobs)
        self._made: set[str] = set()

    def statements(self, database: Database, channel: str | None, *, is_repeat: bool) -> list[Sent]:
        """One message. `is_repeat`: it was sent before, and may have been carried out."""
        are_new = self._are_new and not is_repeat
        if are_new and len(self.jobs) == 1 and is_plain(self.jobs[0]):
            return [database.sent("enqueue_one", columns_of_one(self.jobs[0], channel))]
        insert = database.sent("enqueue_new" if are_new else "enqueue", columns(list(self._first.values()), channel))
        if are_new and not self._have_lanes:
            return [insert]
        statements = [batch.BEGIN, BRIEF, insert]
        if self._have_lanes:
            given = {"admission_key": int8(database.admission_key), "limit": int8(ADMITTED_AT_ONCE)}
            statements += [database.sent("arrive", given), database.sent("admit", given)]
        return [*statements, batch.COMMIT]

    def inserted(self, database: Database, answers: list[list[Row]]) -> Inserted:
        """It is committed."""
        if len(answers) == 1:
            ((count, ids, _),) = answers[0]
        else:
            ((count, ids, _),) = answers[2]
            if self._have_lanes:
                database.positions.lower(answers[4])
        self._made.update(self._first if count == len(self._first) else ids or ())
        return Inserted(count, ids)

    def are_all_new(self, inserted: Inserted) -> bool:
        return inserted.number == len(self.jobs)

    def finish_all_new(self) -> None:
        for ticket in self.tickets:
            ticket.answer = [c.Enqueued(job.id) for job in ticket.command.jobs]

    def finish(self, outcomes: Sequence[c.EnqueueOutcome]) -> None:
        following = iter(outcomes)
        for ticket in self.tickets:
            ticket.answer = [self._own(next(following)) for _ in ticket.command.jobs]

    def _own(self, outcome: c.EnqueueOutcome) -> c.EnqueueOutcome:
        """What looks like a duplicate may have been made by this batch, in a try that did not come to its end."""
        if outcome.job_id not in self._made:
            return outcome
        self._made.remove(outcome.job_id)  # E6: the next one with that id sees it
        return c.Enqueued(outcome.job_id)

    def compare(self, database: Database, connection: Connection, inserted: Inserted) -> list[c.EnqueueOutcome]:
        """E2, E4: some ids were known."""
        count, ids = inserted
        return follow(database, connection, outcomes_of(self.jobs, self._first, count, ids, set()))

    def fail(self, error: LeasemillError) -> None:
        for ticket in self.tickets:
            ticket.fail(error)

    def leave(self) -> None:
        """To their callers."""
        for ticket in self.tickets:
            ticket.is_alone = True


def run(calls: Calls, shared: SharedBatch, inserted: Inserted | None = None, *, is_repeat: bool = False) -> None:
    """Carry out a batch in this thread: each call has its answer or its error, or is left to its caller. Raises no
    Exception. `inserted`: its statement was carried out."""
    database = calls.database
    channel = None if inserted is not None else calls.notifier.channel()

    def work(connection: Connection) -> list[c.EnqueueOutcome] | None:
        nonlocal inserted, is_repeat
        if inserted is None:
            statements = shared.statements(database, channel, is_repeat=is_repeat)
            is_repeat = True
            try:
                with batch.transaction(connection):
                    inserted = shared.inserted(database, batch.run(connection, *statements))
            except LockNotAvailable:
                return None
        if shared.are_all_new(inserted):
            return [c.Enqueued(job.id) for job in shared.jobs]
        known, inserted = inserted, None  # should one be forgotten now, it is all sent again
        return shared.compare(database, connection, known)

    try:
        outcomes = calls.connections.run(work)
    except Unavailable as error:
        shared.fail(error)
    except LeasemillError:
        shared.leave()
    except BaseException as error:
        shared.fail(Unavailable(f"interrupted by {type(error).__name__}; repeat the call"))
        raise
    else:
        if outcomes is None:
            shared.leave()
            return
        shared.finish(outcomes)
        calls.signal.notify()
