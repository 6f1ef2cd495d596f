"""enqueue: new jobs in one statement, shared by callers that come at the same time.

One caller sends at once; those that come while its message is under way make the next batch. There is no timer, so one
caller alone waits for nobody. A batch has an outcome for each job; what makes a batch fail as a whole is left to its
callers, each in a transaction of its own. Only what waits for nobody is shared: calls with ids drawn for them in one
line, those with ids of their own, which may be in somebody's open transaction, in another.

Which queues the jobs are for, and how those are used (I7), is fixed in the transaction of the first job that needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from psycopg.errors import LockNotAvailable, UniqueViolation

from leasemill.errors import LeasemillError, QueueRefused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store import pipeline
from leasemill.store.postgres.admission import ADMITTED_AT_ONCE, admission
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.insert import columns, insert_jobs, outcomes_of
from leasemill.store.postgres.known import Known, limits_named, ruled, used
from leasemill.store.postgres.rows.tables import QueueUse
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import (
    BEGIN,
    COMMIT,
    Message,
    Steps,
    TransactionAttempt,
    Verb,
    rows,
    send,
    transact,
    transaction,
)
from leasemill.store.postgres.verbs.enqueue_unique import decide_rest, has_keys, insert_free, insert_unique

LOGGER: Final = logging.getLogger("leasemill.postgres")

SHARED_JOBS: Final = 100
"""A call of more jobs is a batch of its own."""
SHARED_WEIGHT: Final = 256 * 1024
JOB_BYTES: Final = 1_000
"""The weight of a job beside its payload."""
SHARED_WAIT_MS: Final = 100
"""How long a batch waits for somebody who has one of its ids in an open transaction."""


# One call ------------------------------------------------------------------------------------------------------------


def enqueue(context: VerbContext, command: c.Enqueue) -> Verb[list[c.EnqueueOutcome]]:
    """Durable when it returns, and (the first of them) admitted to their lanes."""
    if not command.jobs:
        return []
    channel = context.notifier.channel()
    made = set[str]()

    def work(attempt: TransactionAttempt) -> Steps[list[c.EnqueueOutcome]]:
        return _enqueue(context.known, command, made, channel, are_new=command.are_new and attempt.number == 1)

    outcomes = yield from transact(work)
    if len(command.jobs) > ADMITTED_AT_ONCE and any(job.lane is not None for job in command.jobs):
        yield from context.maintenance.admit(len(command.jobs) - ADMITTED_AT_ONCE)
    context.signal.notify()
    if made:  # by an attempt that did not come to its end: what looks like a duplicate is our own
        return [c.Enqueued(one.job_id) if one.job_id in made else one for one in outcomes]
    return outcomes


def _enqueue(
    known: Known, command: c.Enqueue, made: set[str], channel: str | None, *, are_new: bool
) -> Steps[list[c.EnqueueOutcome]]:
    """`made`: jobs that are durable already if it fails. `are_new`: the ids were drawn for this call."""
    jobs = command.jobs
    if not known.knows_uses(jobs) or any(job.lane is not None for job in jobs):
        outcomes = yield from transaction(enqueue_within(known, jobs, channel))
        known.learn_uses(job for job, one in zip(jobs, outcomes, strict=True) if isinstance(one, c.Enqueued))
        return outcomes
    if not has_keys(jobs):
        try:
            return (yield from insert_jobs(jobs, channel, are_new=are_new))  # one statement, also for groups
        except UniqueViolation:
            LOGGER.warning("an id that was drawn for a new job is known: enqueueing as if it came again")
            return (yield from insert_jobs(jobs, channel))
    if not are_new:
        return (yield from transaction(insert_unique(jobs, channel)))
    free = yield from insert_free(jobs, channel)  # where nobody has taken their keys, one statement is all
    if len(free) == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    made.update(jobs[index].id for index in free)
    return (yield from transaction(decide_rest(jobs, free, channel)))


def enqueue_within(known: Known, jobs: Sequence[JobSpec], channel: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """In the transaction that is open. When it has committed, `learn_uses` of what is new."""
    names = yield from check_queues(known, jobs)
    outcomes = yield from inserted(jobs, channel)
    yield from use_queues(known, names, jobs, outcomes)
    if any(job.lane is not None for job in jobs):
        _, admitted = yield from send(*admission(known))
        known.positions.lower(admitted)
    return outcomes


def inserted(jobs: Sequence[JobSpec], channel: str | None, *, by: str | None = None) -> Steps[list[c.EnqueueOutcome]]:
    """The insert, on any kind of connection; in a transaction, if jobs have unique keys. `by`: the job whose commit
    adds them."""
    if has_keys(jobs):
        return insert_unique(jobs, channel, by)
    return insert_jobs(jobs, channel, by=by)


# How queues are used (I7) --------------------------------------------------------------------------------------------


def check_queues(known: Known, jobs: Sequence[JobSpec]) -> Steps[set[str]]:
    """Refuses jobs for a queue that is used with acquire; returns the queues not known to be used as these need."""
    names = (used(jobs) - known.claim_queues) | (ruled(jobs) - known.ruled_queues)
    for name, mode in (yield from modes(known, names)).items():
        _check_mode(name, mode)
    return names


def _check_mode(name: str, mode: str | None) -> None:
    if mode == QueueUse.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")


def modes(known: Known, names: set[str]) -> Steps[dict[str, str | None]]:
    """How these queues are used, as far as they have been."""
    if not names:
        return {}
    found = yield from rows("queues_known", {"names": sorted(names)})
    known.limited_queues.update(name for name, _, is_limited in found if is_limited)
    return {name: mode for name, mode, _ in found}


def use_queues(known: Known, names: set[str], jobs: Sequence[JobSpec], outcomes: Sequence[object]) -> Steps[None]:
    """Fix how the queues of new jobs are used."""
    enqueued = [job for job, outcome in zip(jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)]
    yield from fix_uses(known, names, enqueued)


def fix_uses(known: Known, names: set[str], jobs: Sequence[JobSpec]) -> Steps[None]:
    """Fix that the queues which the jobs are for are used with enqueue and claim from now on."""
    if not known.has_rules and any(job.rules is not None for job in jobs):
        yield from rows("use_rules", {})
    with_rules = names & ruled(jobs)
    plain = (names & used(jobs)) - with_rules
    for some, mode in ((plain, QueueUse.CLAIM), (with_rules, QueueUse.RULED)):
        if not some:
            continue
        for name, found in (yield from rows("queues_use", {"names": sorted(some), "mode": mode.value})):
            _check_mode(name, found)
    named = sorted(limits_named(jobs) - known.limits_named)
    if named:
        given = {"queues": [queue for queue, _ in named], "names": [name for _, name in named]}
        yield from rows("use_limits", given)


def register(known: Known, jobs: Sequence[JobSpec]) -> Verb[None]:
    """Fix how the queues of these jobs are used, in a transaction of our own: a user's locks no queue."""
    if known.knows_uses(jobs):
        return

    def steps() -> Steps[None]:
        names = yield from check_queues(known, jobs)
        yield from fix_uses(known, names, jobs)

    yield from transact(lambda _: transaction(steps()))
    known.learn_uses(jobs)


# Calls that share a statement ----------------------------------------------------------------------------------------


class EnqueueTicket(pipeline.Ticket, eq=False):
    """A call. `is_alone`: its caller sends it in a transaction of its own."""

    command: c.Enqueue
    is_alone: bool = False


def ticket(known: Known, command: c.Enqueue) -> EnqueueTicket | None:
    """None: it cannot be shared."""
    jobs = command.jobs
    if not 0 < len(jobs) <= SHARED_JOBS or not known.knows_uses(jobs):
        return None
    weight = 0
    for job in jobs:
        weight += JOB_BYTES + len(job.payload)
        rules = job.rules
        if rules is not None and (rules.unique is not None or rules.group is not None or rules.chain):
            return None
    return EnqueueTicket(command, weight) if weight <= SHARED_WEIGHT else None


def enqueue_shared(context: VerbContext, tickets: Sequence[EnqueueTicket]) -> Verb[None]:
    """One batch: each call has its answer or its error, or is left to its caller. Raises no Exception."""
    batch = SharedBatch(context.known, tickets, context.notifier.channel())
    try:
        outcomes = yield from transact(batch.steps)
    except Unavailable as error:
        for one in tickets:
            one.fail(error)
    except LeasemillError:
        outcomes = None
    except BaseException as error:
        for one in tickets:
            one.fail(Unavailable(f"interrupted by {type(error).__name__}; repeat the call"))
        raise
    else:
        if outcomes is not None:
            context.signal.notify()
            following = iter(outcomes)
            for one in tickets:
                one.answer = [next(following) for _ in one.command.jobs]
            return
    for one in tickets:
        one.is_alone = one.error is None


class SharedBatch:
    """Calls that were taken together."""

    def __init__(self, known: Known, tickets: Sequence[EnqueueTicket], channel: str | None) -> None:
        self._known = known
        self._channel = channel
        self._jobs = [job for ticket in tickets for job in ticket.command.jobs]
        self._first: dict[str, JobSpec] = {}
        for job in self._jobs:
            self._first.setdefault(job.id, job)
        self._are_new = all(ticket.command.are_new for ticket in tickets)
        self._have_lanes = any(job.lane is not None for job in self._jobs)
        self._made: set[str] = set()
        """Jobs that are durable, and not returned yet."""

    def steps(self, attempt: TransactionAttempt) -> Steps[list[c.EnqueueOutcome] | None]:
        """The outcome of each job; None: somebody has one of the ids in an open transaction."""
        # Ids that were drawn for this call need no look for known ones. An attempt that was lost may have inserted
        # them, so the next one looks. Another transaction may hold one of the ids: the batch waits for it only briefly,
        # then each caller goes on alone, so that one user's open transaction does not hold up all enqueues of this
        # process.
        message = self._message(are_new=self._are_new and attempt.number == 1)
        try:
            answers = yield message
        except LockNotAvailable:
            return None
        insert = 0 if len(message) == 1 else 2
        ((count, ids, _),) = answers[insert]
        if self._have_lanes:
            self._known.positions.lower(answers[insert + 2])
        self._made.update(self._first if count == len(self._first) else ids or ())
        if count == len(self._jobs):
            return [c.Enqueued(job.id) for job in self._jobs]
        outcomes = yield from outcomes_of(self._jobs, self._first, count, ids, set())  # E2, E4: some ids were known
        return [self._own(one) for one in outcomes]

    def _message(self, *, are_new: bool) -> Message:
        """One message: alone in it, the statement is a transaction of its own."""
        insert = Execute("enqueue_new" if are_new else "enqueue", columns(list(self._first.values()), self._channel))
        if are_new and not self._have_lanes:
            return (insert,)
        brief = Execute("lock_timeout", {"milliseconds": str(SHARED_WAIT_MS)})
        admitted = admission(self._known) if self._have_lanes else ()
        return BEGIN, brief, insert, *admitted, COMMIT

    def _own(self, outcome: c.EnqueueOutcome) -> c.EnqueueOutcome:
        """Report a job as enqueued that an attempt of this batch inserted, although it did not come to its end."""
        if outcome.job_id not in self._made:
            return outcome
        self._made.remove(outcome.job_id)  # E6: the next one with that id sees it
        return c.Enqueued(outcome.job_id)
