"""Reading: every answer is bounded by the question's limit. Changes and locks nothing."""

from __future__ import annotations

import msgspec
from psycopg.errors import InsufficientPrivilege

from leasemill.kernel import commands as c
from leasemill.kernel.model import UNSUCCESSFUL_STATES, Action, Job, JobState, Policy
from leasemill.kernel.read.filter import JOBS_LOOKED_AT, fits, is_further
from leasemill.kernel.read.rules import group_view
from leasemill.kernel.transitions.unique import holds
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.groups import group_of
from leasemill.store.postgres.exact.rows import jobs_of
from leasemill.store.postgres.exact.tables import LoadedGroup, QueueUse, Read, decoder, known_verb
from leasemill.store.postgres.exact.values import mode_of, policy_of, ranges_of
from leasemill.store.postgres.limits.look import may_grant
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Row
from leasemill.store.reading import Pulse

LOOKED_AT_ONCE = 1_000
"""After the first look, which is at as many as are wanted: most readings find enough there."""
MOST_INT8 = 2**63 - 1
_read = decoder(Read)
_groups = msgspec.json.Decoder(list[LoadedGroup]).decode
STATES = (JobState.READY, JobState.LEASED, JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELLED)


def get_job(database: Database, connection: Connection, query: c.GetJob) -> Job | None:
    jobs = read_jobs(database, connection, ids=[query.job_id])
    return jobs[0] if jobs else None


def get_key(database: Database, connection: Connection, query: c.GetKey) -> c.KeyView | None:
    rows = database.all(connection, "key", {"queue": query.queue, "key": query.key})
    if not rows:
        return None
    ((no, until_at, job_id, now),) = rows
    if now < until_at:
        return c.KeyView(query.queue, query.key, job_id, until_at)
    jobs = read_jobs(database, connection, nos=[no])
    return c.KeyView(query.queue, query.key, job_id, None) if jobs and holds(jobs[0]) else None


def list_leases(database: Database, connection: Connection, query: c.ListLeases) -> list[c.LeaseView]:
    given = {"limit": int8(query.limit), "after": int8(query.after), "worker": query.worker}
    return [c.LeaseView(*row) for row in database.all(connection, "list_leases", given)]


def read_jobs(
    database: Database, connection: Connection, *, nos: list[int] | None = None, ids: list[str] | None = None
) -> list[Job]:
    """Jobs by number or id, in the order of their sequence numbers."""
    return sorted(_jobs(database, connection, nos=nos, ids=ids).values(), key=lambda job: job.seq)


def _jobs(
    database: Database, connection: Connection, *, nos: list[int] | None = None, ids: list[str] | None = None
) -> dict[int, Job]:
    (document,) = database.one(connection, "read", {"nos": int8s(nos or []), "ids": texts(ids or [])})
    return jobs_of(_read(document))


def list_jobs(database: Database, connection: Connection, query: c.ListJobs) -> c.JobPage:
    jobs, after = fitting(
        database, connection, query.filter, None, query.limit, query.after, newest_first=query.newest_first
    )
    return c.JobPage(tuple(jobs), after)


def fitting(
    database: Database,
    connection: Connection,
    wanted: c.JobFilter,
    states: frozenset[JobState] | None,
    limit: int,
    after: int,
    *,
    newest_first: bool = False,
) -> tuple[list[Job], int | None]:
    """O6: at most `limit` jobs that fit, and where to go on; looks at a bounded number."""
    found: list[Job] = []
    if wanted.job_ids is not None:
        named = read_jobs(database, connection, ids=list(wanted.job_ids))
        further = [job for job in named if is_further(job.seq, after, newest_first)]
        for job in _in_order(further, newest_first):
            if (states is None or job.state in states) and fits(job, wanted):
                found.append(job)
                if len(found) == limit:
                    return found, job.seq
        return found, None
    narrowed = states if wanted.states is None else wanted.states
    statement = "candidates_kept" if narrowed is not None and narrowed <= UNSUCCESSFUL_STATES else "candidates"
    if wanted.group is not None and statement == "candidates" and not newest_first:
        statement = "candidates_of_group"
    if newest_first:
        statement += "_newest_first"
        after = after or MOST_INT8
    looked_at, at_once = 0, min(limit, LOOKED_AT_ONCE)
    while looked_at < JOBS_LOOKED_AT:
        at_once = min(at_once, JOBS_LOOKED_AT - looked_at)
        given = {
            "after": int8(after),
            "limit": int8(at_once),
            "error": wanted.error_contains,
            "states": None if narrowed is None else texts(sorted(state.value for state in narrowed)),
            "queue": wanted.queue,
            "kind": wanted.kind,
            "lane": wanted.lane,
            "group_id": wanted.group,
            "unique_key": wanted.unique_key,
            "headers": msgspec.json.encode(wanted.headers).decode() if wanted.headers else None,
        }
        rows = database.all(connection, statement, given)
        may_fit = read_jobs(database, connection, nos=[no for no, _, may_fit in rows if may_fit])
        for job in _in_order(may_fit, newest_first):
            if (states is None or job.state in states) and fits(job, wanted):
                found.append(job)
                if len(found) == limit:
                    return found, job.seq
        if len(rows) < at_once:
            return found, None
        after = rows[-1][1]
        looked_at, at_once = looked_at + at_once, LOOKED_AT_ONCE
    return found, after


def _in_order(jobs: list[Job], newest_first: bool) -> list[Job]:
    return jobs[::-1] if newest_first else jobs


def list_queues(database: Database, connection: Connection, query: c.ListQueues) -> list[c.QueueView]:
    given = {"after": query.after, "limit": int8(query.limit)}
    return [_queue_view(row) for row in database.all(connection, "list_queues", given)]


def _queue_view(row: Row) -> c.QueueView:
    name, mode, is_paused, policy, *counts, oldest = row
    return c.QueueView(
        name,
        mode_of(None if mode is None else QueueUse(mode)),
        is_paused,
        None if policy is None else policy_of(policy),
        dict(zip(STATES, counts, strict=True)),
        oldest,
    )


def get_policies(database: Database, connection: Connection, query: c.GetPolicies) -> list[Policy | None]:
    rows = database.all(connection, "policies", {"queues": texts(query.queues)})
    return [None if policy is None else policy_of(policy) for (policy,) in rows]


def due_in(database: Database, connection: Connection, query: c.DueIn) -> int | None:
    given = {"queues": texts(query.queues)}
    due, is_to_be_seen = database.one(connection, "due_in", given)
    if is_to_be_seen and due != 0:
        try:
            if may_grant(database, connection, tuple(query.queues)):
                return 0
        except InsufficientPrivilege:  # of a role that only reads: a claim would find out
            return 0
        due, _ = database.one(connection, "due_in", given)
    return None if due is None else int(due)


def get_lane(database: Database, connection: Connection, query: c.GetLane) -> c.LaneView | None:
    views = _lanes(database, connection, query.queue, query.lane, False, 0, 1)
    return views[0][1] if views else None


def list_lanes(database: Database, connection: Connection, query: c.ListLanes) -> c.LanePage:
    views = _lanes(database, connection, query.queue, None, query.blocked_only, query.after, query.limit)
    after = views[-1][0] if len(views) == query.limit else None
    return c.LanePage(tuple(view for _, view in views), after)


def _lanes(
    database: Database, connection: Connection, queue: str, lane: str | None, blocked_only: bool, after: int, limit: int
) -> list[tuple[int | None, c.LaneView]]:
    given = {"queue": queue, "lane": lane, "blocked_only": blocked_only, "after": int8(after), "limit": int8(limit)}
    rows = database.all(connection, "list_lanes", given)
    heads = [row[1] for row in rows if row[1] is not None]
    jobs = _jobs(database, connection, nos=heads) if heads else {}
    return [
        (
            seq,
            c.LaneView(
                queue,
                key,
                jobs.get(head),
                is_blocked,
                waiting,
                tuple(ranges_of(done) or ()),
                tuple(ranges_of(failed) or ()),
            ),
        )
        for key, head, seq, is_blocked, done, failed, waiting in rows
    ]


def get_group(database: Database, connection: Connection, query: c.GetGroup) -> c.GroupView | None:
    found = load_groups(database, connection, [query.group_id])
    return group_view(group_of(found[0])) if found else None


def load_groups(database: Database, connection: Connection, ids: list[str]) -> list[LoadedGroup]:
    (document,) = database.one(connection, "read_groups", {"groups": texts(ids)})
    return _groups(document)


def list_groups(database: Database, connection: Connection, query: c.ListGroups) -> list[c.GroupView]:
    given = {"after": query.after, "limit": int8(query.limit), "open_only": query.open_only, "parent": query.parent}
    ids = [group_id for (group_id,) in database.all(connection, "list_groups", given)]
    found = {row.id: row for row in load_groups(database, connection, ids)} if ids else {}
    return [group_view(group_of(found[group_id])) for group_id in ids if group_id in found]


def list_actions(database: Database, connection: Connection, query: c.ListActions) -> list[Action]:
    rows = database.all(connection, "list_actions", {"limit": int8(query.limit)})
    return [
        Action(at, known_verb(verb), by, target, reason, count, first_at, tuple(others))
        for at, verb, by, target, reason, count, first_at, others in rows
    ]


def totals(database: Database, connection: Connection) -> c.Totals:
    *counts, timed, fence, seq, next_expiry_at = database.one(connection, "totals", {})
    return c.Totals(dict(zip(STATES, counts, strict=True)), timed, fence, seq, next_expiry_at)


def pulse(database: Database, connection: Connection) -> Pulse:
    return Pulse(*database.one(connection, "pulse", {}))


def time(database: Database, connection: Connection) -> int:
    (now,) = database.one(connection, "clock", {})
    return int(now)
