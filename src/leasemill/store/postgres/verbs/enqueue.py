"""enqueue: new jobs, in one statement; the queues they are for, and how those are used (I7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from psycopg.errors import UniqueViolation

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.chained import then_id
from leasemill.kernel.groups import refusal
from leasemill.kernel.model import JobSpec
from leasemill.kernel.verbs.enqueue import is_same_content
from leasemill.store.postgres.admission import admit
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, limits_named, ruled, used
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
    if not has_lanes and database.knows_uses(command.jobs):  # one statement, so also for members of groups
        return insert(database, connection, command.jobs, channel, are_new=are_new)
    with connection.transaction():
        outcomes = enqueue_within(database, connection, command.jobs, channel, are_new=are_new)
    database.learn_uses(
        job for job, outcome in zip(command.jobs, outcomes, strict=True) if isinstance(outcome, c.Enqueued)
    )
    return outcomes


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
    """I7: refuses jobs for a queue that is used with acquire; answers with the queues not known to be used so."""
    names = (used(jobs) - database.claim_queues) | (ruled(jobs) - database.ruled_queues)
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
    with_rules = names & ruled(jobs)
    plain = (names & used(jobs)) - with_rules
    for some, mode in ((plain, QueueUse.CLAIM), (with_rules, QueueUse.RULED)):
        given = {"names": texts(sorted(some)), "mode": mode.value}
        for name, found in database.all(connection, "queues_use", given) if some else ():
            if found == QueueUse.ACQUIRE:
                raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")
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
    """The insert alone, on a connection of the store's own and in whatever transaction it is in."""
    return follow(database, connection, inserting(jobs, channel, are_new=are_new, by=by))


def inserting(
    jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """The insert, statement by statement, for any kind of connection. `are_new`: a known id fails, and all with it.
    `by`: the job whose commit adds them."""
    refused: set[str] = set()
    if any(job.rules is not None for job in jobs):
        refused = yield from _begun_chains(jobs)
    first: dict[str, JobSpec] = {}
    for job in jobs:
        if job.id not in refused:
            first.setdefault(job.id, job)
    rows = list(first.values())
    if any(job.rules is not None and job.rules.group is not None for job in rows):
        ((count, ids, _, closed),) = yield "enqueue_members", _members(rows, channel, by)
        if closed:
            named = next(one for job in rows if job.rules is not None and (one := job.rules.group) in closed)
            assert named is not None
            raise refusal(named, is_known=bool((yield "share_groups", {"groups": texts([named])})))
    else:
        ((count, ids, _),) = yield "enqueue_new" if are_new else "enqueue", _columns(rows, channel)
    if count == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    return (yield from _outcomes(jobs, first, count, ids, refused))


def inserting_caused(jobs: Sequence[JobSpec], channel: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """The insert of jobs that an end has caused: the kernel has counted them as members of their groups."""
    first = {job.id: job for job in jobs}
    ((count, ids, _),) = yield "enqueue_caused", _members(list(first.values()), channel, None)
    return (yield from _outcomes(jobs, first, count, ids, set()))


def _begun_chains(jobs: Sequence[JobSpec]) -> Steps[set[str]]:
    """B6: new jobs whose chain cannot begin, since its next job is there."""
    following = {job.id: then_id(job.id) for job in jobs if job.rules is not None and job.rules.chain}
    if not following:
        return set()
    ((rows,),) = yield "specs", {"ids": texts([*following, *following.values()])}
    known = {row.id for row in _job_rows(rows or "[]")}
    return {job_id for job_id, next_id in following.items() if next_id in known and job_id not in known}


def _outcomes(
    jobs: Sequence[JobSpec], first: dict[str, JobSpec], count: int, ids: Sequence[str] | None, refused: set[str]
) -> Steps[list[c.EnqueueOutcome]]:
    inserted = set(first) if count == len(first) else set(ids or ())
    unknown = [job_id for job_id in first if job_id not in inserted]
    known: dict[str, JobSpec] = {}
    if unknown:
        ((rows,),) = yield "specs", {"ids": texts(unknown)}
        known = {row.id: spec_of(row) for row in _job_rows(rows or "[]")}
    outcomes: list[c.EnqueueOutcome] = []
    for job in jobs:
        if job.id in refused:
            outcomes.append(c.Conflict(job.id))
        elif job.id in inserted:
            inserted.remove(job.id)  # E6: the first of that id; the next one sees it
            known[job.id] = job
            outcomes.append(c.Enqueued(job.id))
        elif job.id not in known:
            raise Moved(f"job {job.id!r} was forgotten as it was enqueued again")
        else:
            outcomes.append(c.Duplicate(job.id) if is_same_content(known[job.id], job) else c.Conflict(job.id))
    return outcomes


def _members(jobs: list[JobSpec], channel: str | None, by: str | None) -> dict[str, Any]:
    groups = texts([None if job.rules is None else job.rules.group for job in jobs])
    return {**_columns(jobs, channel), "group_ids": groups, "member": by}


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
