"""The insert of new jobs, statement by statement, for any kind of connection.

An enqueue, a commit with follow-ups, a user's transaction and the exact path all insert by these steps. The statement
leaves known ids alone; what they mean, a duplicate or a conflict, is decided here by what is on record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.kernel.transitions.groups import refusal, then_id
from leasemill.kernel.verbs.enqueue import is_same_content
from leasemill.store.postgres.rows.jobs import spec_of
from leasemill.store.postgres.rows.tables import JobRow
from leasemill.store.postgres.rows.values import headers_text, policy_text, rules_text
from leasemill.store.postgres.steps import RetryTransaction, Steps, row, rows

_job_rows = msgspec.json.Decoder(list[JobRow]).decode


def insert_jobs(
    jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """Insert jobs as they are, whatever their keys. `are_new`: a known id fails, and all with it. `by`: the job whose
    commit adds them."""
    refused: set[str] = set()
    if any(job.rules is not None for job in jobs):
        refused = yield from begun_chains(jobs)
    first: dict[str, JobSpec] = {}
    for job in jobs:
        if job.id not in refused:
            first.setdefault(job.id, job)
    new = list(first.values())
    if any(job.rules is not None and job.rules.group is not None for job in new):
        count, ids, _, closed = yield from row("enqueue_members", {**columns(new, channel), "member": by})
        if closed:
            named = next(one for job in new if job.rules is not None and (one := job.rules.group) in closed)
            assert named is not None
            raise refusal(named, is_known=bool((yield from rows("share_groups", {"groups": [named]}))))
    else:
        count, ids, _ = yield from row("enqueue_new" if are_new else "enqueue", columns(new, channel))
    if count == len(jobs):
        return [c.Enqueued(job.id) for job in jobs]
    return (yield from outcomes_of(jobs, first, count, ids, refused))


def insert_caused(jobs: Sequence[JobSpec], channel: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """Insert jobs that an end has caused: the kernel has counted them as members of their groups."""
    first = {job.id: job for job in jobs}
    count, ids, _ = yield from row("enqueue", columns(list(first.values()), channel))
    return (yield from outcomes_of(jobs, first, count, ids, set()))


def begun_chains(jobs: Sequence[JobSpec]) -> Steps[set[str]]:
    """B6: new jobs whose chain cannot begin, since its next job is there."""
    following = {job.id: then_id(job.id) for job in jobs if job.rules is not None and job.rules.chain}
    if not following:
        return set()
    (found,) = yield from row("specs", {"ids": [*following, *following.values()]})
    known = {one.id for one in _job_rows(found or "[]")}
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
        (found,) = yield from row("specs", {"ids": unknown})
        known = {one.id: spec_of(one) for one in _job_rows(found or "[]")}
    outcomes: list[c.EnqueueOutcome] = []
    for job in jobs:
        if job.id in refused:
            outcomes.append(c.Conflict(job.id))
        elif job.id in inserted:
            inserted.remove(job.id)  # E6: the first of that id; the next one sees it
            known[job.id] = job
            outcomes.append(c.Enqueued(job.id))
        elif job.id not in known:
            raise RetryTransaction(f"job {job.id!r} was forgotten as it was enqueued again")
        else:
            outcomes.append(c.Duplicate(job.id) if is_same_content(known[job.id], job) else c.Conflict(job.id))
    return outcomes


def columns(jobs: list[JobSpec], channel: str | None) -> dict[str, Any]:
    """The parameters of an insert, a column each."""
    return {
        "ids": [job.id for job in jobs],
        "queues": [job.queue for job in jobs],
        "kinds": [job.kind for job in jobs],
        "payloads": [job.payload for job in jobs],
        "lanes": _if_any([job.lane for job in jobs]),
        "priorities": [job.priority for job in jobs],
        "run_ats": _if_any([job.run_at for job in jobs]),
        "delays": _if_any([job.delay_us or None for job in jobs]),
        "policies": _if_any([job.policy for job in jobs], policy_text),
        "headers": _if_any([job.headers for job in jobs], headers_text),
        "rules": _if_any([job.rules for job in jobs], rules_text),
        "group_ids": _if_any([None if job.rules is None else job.rules.group for job in jobs]),
        "channel": channel,
    }


def _if_any(values: list[Any], text: Callable[[Any], str | None] | None = None) -> list[Any] | None:
    """Most columns are NULL in most batches: `unnest` fills up a column that is not sent."""
    if values.count(None) == len(values):
        return None
    return values if text is None else [text(value) for value in values]
