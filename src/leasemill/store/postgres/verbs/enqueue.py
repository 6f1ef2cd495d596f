"""enqueue: new jobs, in one statement; the queues they are for, and how those are used (I7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from psycopg.errors import UniqueViolation

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.kernel.verbs.enqueue import is_same_content
from leasemill.store.postgres.admission import admit
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, limits_named, needs_ruled_queue
from leasemill.store.postgres.exact.rows import spec_of
from leasemill.store.postgres.exact.tables import JobRow, QueueUse
from leasemill.store.postgres.exact.values import headers_text, policy_text, rules_text
from leasemill.store.postgres.steps import Steps, follow
from leasemill.store.postgres.wire.arrays import encoded, int8s, texts
from leasemill.store.postgres.wire.connections import LOGGER, Connection, Moved

_job_rows = msgspec.json.Decoder(list[JobRow]).decode


def run(calls: Calls, command: c.Enqueue) -> list[c.EnqueueOutcome]:
    channel = calls.notifier.channel()
    tries = 0

    def work(connection: Connection) -> list[c.EnqueueOutcome]:
        nonlocal tries
        tries += 1
        return enqueue(calls.database, connection, command, channel=channel, is_repeat=tries > 1)

    outcomes = calls.connections.run(work)
    calls.signal.notify()
    return outcomes


def enqueue(
    database: Database, connection: Connection, command: c.Enqueue, *, channel: str | None, is_repeat: bool
) -> list[c.EnqueueOutcome]:
    """On a connection of the store's own: durable, and admitted to their lanes, when it returns."""
    if not command.jobs:
        return []
    if command.are_new and not is_repeat:
        try:
            return _enqueue(database, connection, command, channel, are_new=True)
        except UniqueViolation:
            LOGGER.warning("an id that was drawn for a new job is known: enqueueing as if it came again")
    return _enqueue(database, connection, command, channel, are_new=False)


def _enqueue(
    database: Database, connection: Connection, command: c.Enqueue, channel: str | None, *, are_new: bool
) -> list[c.EnqueueOutcome]:
    has_lanes = any(job.lane is not None for job in command.jobs)
    if not has_lanes and database.knows_uses(command.jobs):
        return insert(database, connection, command.jobs, channel, are_new=are_new)
    with connection.transaction():
        names = check_enqueue_queues(database, connection, command.jobs)
        outcomes = insert(database, connection, command.jobs, channel, are_new=are_new)
        use_queues(database, connection, names, command.jobs, outcomes)
        if has_lanes:
            admit(database, connection)
    database.learn_uses(
        job for job, outcome in zip(command.jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)
    )
    return outcomes


def check_enqueue_queues(database: Database, connection: Connection, jobs: Sequence[JobSpec]) -> set[str]:
    """I7: refuses jobs for a queue that is used with acquire; answers with the queues not known to be used so."""
    ruled = {job.queue for job in jobs if needs_ruled_queue(job)}
    names = ({job.queue for job in jobs} - database.claim_queues) | (ruled - database.ruled_queues)
    for name, mode in modes(database, connection, names).items():
        if mode == QueueUse.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")
    return names


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
    ruled = names & {job.queue for job in jobs if needs_ruled_queue(job)}
    plain = (names & {job.queue for job in jobs}) - ruled
    for used, mode in ((plain, QueueUse.CLAIM), (ruled, QueueUse.RULED)):
        given = {"names": texts(sorted(used)), "mode": mode.value}
        for name, found in database.all(connection, "queues_use", given) if used else ():
            if found == QueueUse.ACQUIRE:
                raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")
    named = sorted(limits_named(jobs) - database.limits_named)
    if named:
        given = {"queues": texts([queue for queue, _ in named]), "names": texts([name for _, name in named])}
        database.do(connection, "use_limits", given)


def insert(
    database: Database, connection: Connection, jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False
) -> list[c.EnqueueOutcome]:
    """The insert alone, on a connection of the store's own and in whatever transaction it is in."""
    return follow(database, connection, inserting(jobs, channel, are_new=are_new))


def inserting(jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False) -> Steps[list[c.EnqueueOutcome]]:
    """The insert, statement by statement, for any kind of connection. `are_new`: a known id fails, and all with it."""
    first: dict[str, JobSpec] = {}
    for job in jobs:
        first.setdefault(job.id, job)
    ((count, ids, _),) = yield "enqueue_new" if are_new else "enqueue", _columns(list(first.values()), channel)
    if count == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    inserted = set(first) if count == len(first) else set(ids or ())
    unknown = [job_id for job_id in first if job_id not in inserted]
    known: dict[str, JobSpec] = {}
    if unknown:
        ((rows,),) = yield "specs", {"ids": texts(unknown)}
        known = {row.id: spec_of(row) for row in _job_rows(rows or "[]")}
    outcomes: list[c.EnqueueOutcome] = []
    for job in jobs:
        if job.id in inserted:
            inserted.remove(job.id)  # E6: the first of that id; the next one sees it
            known[job.id] = job
            outcomes.append(c.Enqueued(job.id))
        elif job.id not in known:
            raise Moved(f"job {job.id!r} was forgotten as it was enqueued again")
        else:
            outcomes.append(c.Duplicate(job.id) if is_same_content(known[job.id], job) else c.Conflict(job.id))
    return outcomes


def _columns(jobs: list[JobSpec], channel: str | None) -> dict[str, Any]:
    return {
        "ids": texts([job.id for job in jobs]),
        "queues": texts([job.queue for job in jobs]),
        "kinds": texts([job.kind for job in jobs]),
        "payloads": encoded([job.payload for job in jobs]),
        "lanes": texts([job.lane for job in jobs]),
        "priorities": int8s([job.priority for job in jobs]),
        "run_ats": int8s([job.run_at for job in jobs]),
        "delays": int8s([job.delay_us or None for job in jobs]),
        "policies": texts([policy_text(job.policy) for job in jobs]),
        "headers": texts([headers_text(job.headers) for job in jobs]),
        "rules": texts([rules_text(job.rules) for job in jobs]),
        "channel": channel,
    }
