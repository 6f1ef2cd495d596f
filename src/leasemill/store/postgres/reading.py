"""Reading: every answer is bounded by the question's limit. Changes and locks nothing."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from psycopg.errors import InsufficientPrivilege

from leasemill.kernel import commands as c
from leasemill.kernel.model import UNSUCCESSFUL_STATES, Action, Job, JobState, Policy
from leasemill.kernel.read.filter import JOBS_LOOKED_AT, fits, is_further
from leasemill.kernel.read.rules import group_view
from leasemill.kernel.schedule import Schedule
from leasemill.kernel.transitions.unique import holds
from leasemill.store.postgres.exact.groups import group_of
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.limits.claim import may_grant
from leasemill.store.postgres.rows.jobs import jobs_of
from leasemill.store.postgres.rows.tables import LoadedGroup, QueueUse, Read, decoder, known_verb
from leasemill.store.postgres.rows.values import mode_of, policy_of, ranges_of
from leasemill.store.postgres.steps import Row, Steps, row, rows
from leasemill.store.readings import Pulse

LOOKED_AT_ONCE: Final = 1_000
"""After the first look, which is at as many as are wanted: most readings find enough there."""
MOST_INT8: Final = 2**63 - 1
STATES: Final = (
    JobState.READY,
    JobState.LEASED,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.DEAD,
    JobState.CANCELLED,
)
_read = decoder(Read)
_groups = msgspec.json.Decoder(list[LoadedGroup]).decode
schedule_text = msgspec.json.Encoder().encode
schedule_of = decoder(Schedule)


# Jobs ----------------------------------------------------------------------------------------------------------------


def get_job(query: c.GetJob) -> Steps[Job | None]:
    jobs = yield from read_jobs(ids=[query.job_id])
    return jobs[0] if jobs else None


def get_key(query: c.GetKey) -> Steps[c.KeyView | None]:
    found = yield from rows("key", {"queue": query.queue, "key": query.key})
    if not found:
        return None
    ((no, until_at, job_id, now),) = found
    if now < until_at:
        return c.KeyView(query.queue, query.key, job_id, until_at)
    jobs = yield from read_jobs(nos=[no])
    return c.KeyView(query.queue, query.key, job_id, None) if jobs and holds(jobs[0]) else None


def list_leases(query: c.ListLeases) -> Steps[list[c.LeaseView]]:
    given = {"limit": query.limit, "after": query.after, "worker": query.worker}
    return [c.LeaseView(*one) for one in (yield from rows("list_leases", given))]


def read_jobs(*, nos: list[int] | None = None, ids: list[str] | None = None) -> Steps[list[Job]]:
    """Jobs by number or id, in the order of their sequence numbers."""
    return sorted((yield from _jobs(nos=nos, ids=ids)).values(), key=lambda job: job.seq)


def _jobs(*, nos: list[int] | None = None, ids: list[str] | None = None) -> Steps[dict[int, Job]]:
    (document,) = yield from row("read", {"nos": nos or [], "ids": ids or []})
    return jobs_of(_read(document))


def list_jobs(query: c.ListJobs) -> Steps[c.JobPage]:
    jobs, after = yield from fitting(query.filter, None, query.limit, query.after, newest_first=query.newest_first)
    return c.JobPage(tuple(jobs), after)


def fitting(
    wanted: c.JobFilter,
    states: frozenset[JobState] | None,
    limit: int,
    after: int,
    *,
    newest_first: bool = False,
) -> Steps[tuple[list[Job], int | None]]:
    """O6: at most `limit` jobs that fit, and where to go on; looks at a bounded number."""
    found: list[Job] = []

    def is_full_with(jobs: list[Job]) -> bool:
        for job in jobs[::-1] if newest_first else jobs:
            if (states is None or job.state in states) and fits(job, wanted):
                found.append(job)
                if len(found) == limit:
                    return True
        return False

    if wanted.job_ids is not None:
        named = yield from read_jobs(ids=list(wanted.job_ids))
        is_full = is_full_with([job for job in named if is_further(job.seq, after, newest_first)])
        return found, found[-1].seq if is_full else None
    narrowed = states if wanted.states is None else wanted.states
    statement = _candidates(wanted, narrowed, newest_first=newest_first)
    if newest_first:
        after = after or MOST_INT8
    looked_at, at_once = 0, min(limit, LOOKED_AT_ONCE)
    while looked_at < JOBS_LOOKED_AT:
        at_once = min(at_once, JOBS_LOOKED_AT - looked_at)
        page = yield from rows(statement, {**_filter(wanted, narrowed), "after": after, "limit": at_once})
        if is_full_with((yield from read_jobs(nos=[no for no, _, may_fit in page if may_fit]))):
            return found, found[-1].seq
        if len(page) < at_once:
            return found, None
        after = page[-1][1]
        looked_at, at_once = looked_at + at_once, LOOKED_AT_ONCE
    return found, after


def _candidates(wanted: c.JobFilter, states: frozenset[JobState] | None, *, newest_first: bool) -> str:
    """The statement that finds jobs by the index that narrows most."""
    if states is not None and states <= UNSUCCESSFUL_STATES:
        return "candidates_kept_newest_first" if newest_first else "candidates_kept"
    if newest_first:
        return "candidates_newest_first"
    return "candidates" if wanted.group is None else "candidates_of_group"


def _filter(wanted: c.JobFilter, states: frozenset[JobState] | None) -> dict[str, Any]:
    return {
        "error": wanted.error_contains,
        "states": None if states is None else sorted(state.value for state in states),
        "queue": wanted.queue,
        "kind": wanted.kind,
        "lane": wanted.lane,
        "group_id": wanted.group,
        "unique_key": wanted.unique_key,
        "headers": msgspec.json.encode(wanted.headers).decode() if wanted.headers else None,
    }


# Queues and lanes ----------------------------------------------------------------------------------------------------


def list_queues(query: c.ListQueues) -> Steps[list[c.QueueView]]:
    found = yield from rows("list_queues", {"after": query.after, "limit": query.limit})
    return [_queue_view(one) for one in found]


def _queue_view(found: Row) -> c.QueueView:
    name, mode, is_paused, policy, *counts, oldest = found
    return c.QueueView(
        name,
        mode_of(None if mode is None else QueueUse(mode)),
        is_paused,
        None if policy is None else policy_of(policy),
        dict(zip(STATES, counts, strict=True)),
        oldest,
    )


def get_policies(query: c.GetPolicies) -> Steps[list[Policy | None]]:
    found = yield from rows("policies", {"queues": query.queues})
    return [None if policy is None else policy_of(policy) for (policy,) in found]


def due_in(known: Known, query: c.DueIn) -> Steps[int | None]:
    """Under limits a job that is due may still wait for a place: then it is looked at as a claim would."""
    given = {"queues": query.queues}
    due, is_to_be_seen = yield from row("due_in", given)
    if is_to_be_seen and due != 0:
        try:
            if (yield from may_grant(known, tuple(query.queues))):
                return 0
        except InsufficientPrivilege:  # of a role that only reads: a claim would find out
            return 0
        due, _ = yield from row("due_in", given)
    return None if due is None else int(due)


def get_lane(query: c.GetLane) -> Steps[c.LaneView | None]:
    views = yield from _lanes(query.queue, query.lane, False, 0, 1)
    return views[0][1] if views else None


def list_lanes(query: c.ListLanes) -> Steps[c.LanePage]:
    views = yield from _lanes(query.queue, None, query.blocked_only, query.after, query.limit)
    after = views[-1][0] if len(views) == query.limit else None
    return c.LanePage(tuple(view for _, view in views), after)


def _lanes(
    queue: str, lane: str | None, blocked_only: bool, after: int, limit: int
) -> Steps[list[tuple[int | None, c.LaneView]]]:
    given = {"queue": queue, "lane": lane, "blocked_only": blocked_only, "after": after, "limit": limit}
    found = yield from rows("list_lanes", given)
    heads = [head for _, head, *_ in found if head is not None]
    jobs = (yield from _jobs(nos=heads)) if heads else {}
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
        for key, head, seq, is_blocked, done, failed, waiting in found
    ]


# Groups, schedules, and the whole store ------------------------------------------------------------------------------


def get_group(query: c.GetGroup) -> Steps[c.GroupView | None]:
    found = yield from load_groups([query.group_id])
    return group_view(group_of(found[0])) if found else None


def load_groups(ids: list[str]) -> Steps[list[LoadedGroup]]:
    (document,) = yield from row("read_groups", {"groups": ids})
    return _groups(document)


def list_groups(query: c.ListGroups) -> Steps[list[c.GroupView]]:
    given = {"after": query.after, "limit": query.limit, "open_only": query.open_only, "parent": query.parent}
    ids = [group_id for (group_id,) in (yield from rows("list_groups", given))]
    found = {one.id: one for one in (yield from load_groups(ids))} if ids else {}
    return [group_view(group_of(found[group_id])) for group_id in ids if group_id in found]


def get_schedule(query: c.GetSchedule) -> Steps[Schedule | None]:
    found = yield from rows("list_schedules", {"after": "", "names": [query.name], "limit": 1})
    return schedule_of(found[0][0]) if found else None


def list_schedules(query: c.ListSchedules) -> Steps[list[Schedule]]:
    found = yield from rows("list_schedules", {"after": query.after, "names": None, "limit": query.limit})
    return [schedule_of(record) for (record,) in found]


def due_schedules(query: c.DueSchedules) -> Steps[list[Schedule]]:
    found = yield from rows("due_schedules", {"wall": query.wall, "limit": query.limit})
    return [schedule_of(record) for (record,) in found]


def next_tick() -> Steps[int | None]:
    (tick_at,) = yield from row("next_tick", {})
    return None if tick_at is None else int(tick_at)


def list_actions(query: c.ListActions) -> Steps[list[Action]]:
    found = yield from rows("list_actions", {"limit": query.limit})
    return [
        Action(at, known_verb(verb), by, target, reason, count, first_at, tuple(others))
        for at, verb, by, target, reason, count, first_at, others in found
    ]


def totals() -> Steps[c.Totals]:
    *counts, timed, fence, seq, next_expiry_at = yield from row("totals", {})
    return c.Totals(dict(zip(STATES, counts, strict=True)), timed, fence, seq, next_expiry_at)


def pulse() -> Steps[Pulse]:
    return Pulse(*(yield from row("pulse", {})))


def time() -> Steps[int]:
    (now,) = yield from row("clock", {})
    return int(now)
