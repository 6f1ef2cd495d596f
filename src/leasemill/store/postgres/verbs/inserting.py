"""The insert of new jobs, statement by statement, for any kind of connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.kernel.transitions.groups import refusal, then_id
from leasemill.kernel.verbs.enqueue import is_same_content
from leasemill.store.postgres.exact.rows import spec_of
from leasemill.store.postgres.exact.tables import JobRow
from leasemill.store.postgres.exact.values import headers_text, policy_text, rules_text
from leasemill.store.postgres.steps import Steps
from leasemill.store.postgres.wire.arrays import encoded, int8, int8s, texts
from leasemill.store.postgres.wire.connections import Moved

ValueT = TypeVar("ValueT")

_job_rows = msgspec.json.Decoder(list[JobRow]).decode


def inserting_plain(
    jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """Jobs as they are, whatever their keys. `are_new`: a known id fails, and all with it. `by`: the job whose commit
    adds them."""
    refused: set[str] = set()
    if any(job.rules is not None for job in jobs):
        refused = yield from begun_chains(jobs)
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
        ((count, ids, _),) = yield "enqueue_new" if are_new else "enqueue", columns(rows, channel)
    if count == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    return (yield from outcomes_of(jobs, first, count, ids, refused))


def inserting_caused(jobs: Sequence[JobSpec], channel: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """The insert of jobs that an end has caused: the kernel has counted them as members of their groups."""
    first = {job.id: job for job in jobs}
    ((count, ids, _),) = yield "enqueue_caused", _members(list(first.values()), channel, None)
    return (yield from outcomes_of(jobs, first, count, ids, set()))


def begun_chains(jobs: Sequence[JobSpec]) -> Steps[set[str]]:
    """B6: new jobs whose chain cannot begin, since its next job is there."""
    following = {job.id: then_id(job.id) for job in jobs if job.rules is not None and job.rules.chain}
    if not following:
        return set()
    ((rows,),) = yield "specs", {"ids": texts([*following, *following.values()])}
    known = {row.id for row in _job_rows(rows or "[]")}
    return {job_id for job_id, next_id in following.items() if next_id in known and job_id not in known}


def outcomes_of(
    jobs: Sequence[JobSpec], first: dict[str, JobSpec], count: int, ids: Sequence[str] | None, refused: set[str]
) -> Steps[list[c.EnqueueOutcome]]:
    """One outcome for each job. `first`: the first job with each id; `count` of them were inserted, and if that is not
    all, those in `ids`."""
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
    return {**columns(jobs, channel), "group_ids": groups, "member": by}


def columns(jobs: list[JobSpec], channel: str | None) -> dict[str, Any]:
    return {
        "ids": texts([job.id for job in jobs]),
        "queues": texts([job.queue for job in jobs]),
        "kinds": texts([job.kind for job in jobs]),
        "payloads": encoded([job.payload for job in jobs]),
        "lanes": _if_any([job.lane for job in jobs], texts),
        "priorities": int8s([job.priority for job in jobs]),
        "run_ats": _if_any([job.run_at for job in jobs], int8s),
        "delays": _if_any([job.delay_us or None for job in jobs], int8s),
        "policies": _if_any([job.policy for job in jobs], lambda some: texts(map(policy_text, some))),
        "headers": _if_any([job.headers for job in jobs], lambda some: texts(map(headers_text, some))),
        "rules": _if_any([job.rules for job in jobs], lambda some: texts(map(rules_text, some))),
        "channel": channel,
    }


def is_plain(job: JobSpec) -> bool:
    """In no lane, and with nothing that most jobs do not have but headers."""
    return job.lane is None and job.policy is None and job.rules is None and job.offset is None


def columns_of_one(job: JobSpec, channel: str | None) -> dict[str, Any]:
    """Of a plain job."""
    return {
        "id": job.id,
        "queue": job.queue,
        "kind": job.kind,
        "payload": job.payload,
        "priority": int8(job.priority),
        "run_at": int8(job.run_at),
        "delay_us": int8(job.delay_us or None),
        "headers": headers_text(job.headers),
        "channel": channel,
    }


def _if_any(values: list[ValueT | None], array: Callable[[list[ValueT | None]], Any]) -> Any:
    """Most columns are NULL in most batches: `unnest` fills up a column that is not sent."""
    return array(values) if values.count(None) < len(values) else None
