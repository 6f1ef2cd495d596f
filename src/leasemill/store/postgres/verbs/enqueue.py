"""enqueue: new jobs, in one statement; the queues they are for, and how those are used (I7)."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import UniqueViolation

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.admission import ADMITTED_AT_ONCE, admit
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, limits_named, ruled, used
from leasemill.store.postgres.exact.tables import QueueUse
from leasemill.store.postgres.steps import Steps, follow
from leasemill.store.postgres.verbs.inserting import inserting_plain
from leasemill.store.postgres.verbs.many import can_copy, insert_many
from leasemill.store.postgres.verbs.unique import deciding_rest, has_keys, inserting_unique, trying
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.connections import LOGGER, Connection


def run(calls: Calls, command: c.Enqueue) -> list[c.EnqueueOutcome]:
    channel = calls.notifier.channel()
    tries = 0
    made = set[str]()

    def work(connection: Connection) -> list[c.EnqueueOutcome]:
        nonlocal tries
        tries += 1
        return enqueue(calls.database, connection, command, made, channel=channel, is_repeat=tries > 1)

    outcomes = calls.connections.run(work)
    if len(command.jobs) > ADMITTED_AT_ONCE and any(job.lane is not None for job in command.jobs):
        calls.maintenance.admit(len(command.jobs) - ADMITTED_AT_ONCE)
    calls.signal.notify()
    if made:  # by a try that did not come to its end: what looks like a duplicate is our own
        return [c.Enqueued(one.job_id) if one.job_id in made else one for one in outcomes]
    return outcomes


def enqueue(
    database: Database,
    connection: Connection,
    command: c.Enqueue,
    made: set[str],
    *,
    channel: str | None,
    is_repeat: bool,
) -> list[c.EnqueueOutcome]:
    """On a connection of the store's own: durable when it returns, and (the first of them) admitted to their lanes.
    `made`: the jobs that are durable already if it fails."""
    if not command.jobs:
        return []
    if command.are_new and not is_repeat:
        try:
            return _enqueue(database, connection, command, made, channel, are_new=True)
        except UniqueViolation as error:
            if error.diag.table_name != "unique_keys":  # U1: somebody took a key at the same time
                LOGGER.warning("an id that was drawn for a new job is known: enqueueing as if it came again")
    return _enqueue(database, connection, command, made, channel, are_new=False)


def _enqueue(
    database: Database,
    connection: Connection,
    command: c.Enqueue,
    made: set[str],
    channel: str | None,
    *,
    are_new: bool,
) -> list[c.EnqueueOutcome]:
    has_lanes = any(job.lane is not None for job in command.jobs)
    are_unique = has_keys(command.jobs)
    if not has_lanes and (are_new or not are_unique) and database.knows_uses(command.jobs):
        if are_unique:
            return _enqueue_unique(database, connection, command.jobs, made, channel)
        if are_new and can_copy(command.jobs):
            with connection.transaction():
                return insert(database, connection, command.jobs, channel, are_new=True)
        # one statement, so also for members of groups
        return insert(database, connection, command.jobs, channel, are_new=are_new)
    with connection.transaction():
        outcomes = enqueue_within(database, connection, command.jobs, channel, are_new=are_new)
    database.learn_uses(
        job for job, outcome in zip(command.jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)
    )
    return outcomes


def _enqueue_unique(
    database: Database, connection: Connection, jobs: Sequence[JobSpec], made: set[str], channel: str | None
) -> list[c.EnqueueOutcome]:
    """With ids drawn for this call: where nobody has taken their keys, one statement."""
    places = follow(database, connection, trying(jobs, channel, are_new=True))
    if len(places) == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    made.update(jobs[place].id for place in places)
    with connection.transaction():
        return follow(database, connection, deciding_rest(jobs, places, channel))


def enqueue_within(
    database: Database, connection: Connection, jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False
) -> list[c.EnqueueOutcome]:
    """In the transaction that is open. When it has committed, `learn_uses` of what is new."""
    names = check_enqueue_queues(database, connection, jobs)
    outcomes = insert(database, connection, jobs, channel, are_new=are_new)
    use_queues(database, connection, names, jobs, outcomes)
    if any(job.lane is not None for job in jobs):
        admit(database, connection)
    return outcomes


def check_enqueue_queues(database: Database, connection: Connection, jobs: Sequence[JobSpec]) -> set[str]:
    """I7: refuses jobs for a queue that is used with acquire; returns the queues not known to be used so."""
    names = (used(jobs) - database.claim_queues) | (ruled(jobs) - database.ruled_queues)
    for name, mode in modes(database, connection, names).items():
        _check_mode(name, mode)
    return names


def _check_mode(name: str, mode: str | None) -> None:
    if mode == QueueUse.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")


def modes(database: Database, connection: Connection, names: set[str]) -> dict[str, str | None]:
    if not names:
        return {}
    rows = database.all(connection, "queues_known", {"names": texts(sorted(names))})
    database.limited_queues.update(name for name, _, is_limited in rows if is_limited)
    return {name: mode for name, mode, _ in rows}


def use_queues(
    database: Database, connection: Connection, names: set[str], jobs: Sequence[JobSpec], outcomes: Sequence[object]
) -> None:
    """Fix how the queues of new jobs are used."""
    enqueued = [job for job, outcome in zip(jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)]
    fix_uses(database, connection, names, enqueued)


def fix_uses(database: Database, connection: Connection, names: set[str], jobs: Sequence[JobSpec]) -> None:
    """I7: those of these queues that the jobs are for are used with enqueue and claim from now on."""
    if not database.has_rules and any(job.rules is not None for job in jobs):
        database.do(connection, "use_rules", {})
    with_rules = names & ruled(jobs)
    plain = (names & used(jobs)) - with_rules
    for some, mode in ((plain, QueueUse.CLAIM), (with_rules, QueueUse.RULED)):
        given = {"names": texts(sorted(some)), "mode": mode.value}
        for name, found in database.all(connection, "queues_use", given) if some else ():
            _check_mode(name, found)
    named = sorted(limits_named(jobs) - database.limits_named)
    if named:
        given = {"queues": texts([queue for queue, _ in named]), "names": texts([name for _, name in named])}
        database.do(connection, "use_limits", given)


def insert(
    database: Database,
    connection: Connection,
    jobs: Sequence[JobSpec],
    channel: str | None,
    *,
    are_new: bool = False,
    by: str | None = None,
) -> list[c.EnqueueOutcome]:
    """The insert alone, on a connection of the store's own and in whatever transaction it is in; of many in one."""
    if are_new and can_copy(jobs):
        insert_many(database, connection, jobs, channel)
        return [c.Enqueued(job.id) for job in jobs]
    return follow(database, connection, inserting(jobs, channel, are_new=are_new, by=by))


def inserting(
    jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """The insert, statement by statement, for any kind of connection; of jobs with unique keys in a transaction.
    `are_new`: a known id fails, and all with it. `by`: the job whose commit adds them."""
    if has_keys(jobs):
        return inserting_unique(jobs, channel, by)
    return inserting_plain(jobs, channel, are_new=are_new, by=by)
