"""One job: why it is in its state, every attempt drawn to scale, what it carries and what binds it to others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from starlette.responses import Response

from leasemill.api.redaction import REDACTED
from leasemill.dashboard.advice import Advised, advised
from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.timeline import extended_us, last_extended_at, timeline
from leasemill.errors import NotFound
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import ExecutionStatus, Job, JobState
from leasemill.kernel.transitions.groups import end_id, then_id
from leasemill.kernel.verbs.commit import followup_id
from leasemill.operator.explain import Explanation, explain
from leasemill.operator.facts import JobFacts, gather
from leasemill.operator.missing_job import explain_missing
from leasemill.store.base import Store
from leasemill.store.worker_records import Reported, reported_run

FOLLOWUPS_LOOKED_UP: Final = 20
LANE_SHOWN: Final = 6


class Relatives(Struct, frozen=True):
    """`parent`: whose commit enqueued it; `before`: whose success did, in its chain; `following`: what it enqueued
    itself; `lane`: the jobs around it in its lane, oldest first."""

    parent: Job | None
    before: Job | None
    following: list[Job]
    lane: list[Job]


def read(context: PageContext) -> Mapping[str, Any]:
    job_id = context.asked("id") or ""
    store = context.store
    now = store.time()
    facts = gather(store, job_id, now, context.at_work(), context.queues())
    if facts is None:
        absent = explain_missing(store, job_id)
        if absent is None:
            raise NotFound(f"there is no job {job_id!r}: it never existed, or retention or purge has removed it")
        return {"title": job_id, "job": None, "explanation": absent, "advice": _advice(absent), "now": now}
    job = facts.job
    explanation = explain(facts)
    return {
        "title": job.spec.id,
        "job": job,
        "explanation": explanation,
        "advice": _advice(explanation, facts),
        "facts": facts,
        "relatives": _relatives(store, facts),
        "timeline": timeline(job, now),
        "extended_us": extended_us,
        "last_extended_at": last_extended_at,
        "payload": context.redaction.text(job.spec.payload),
        "result": None if job.result is None else context.redaction.text(job.result),
        "headers": _headers(context, job),
        "progress": _progress(store, job),
        "now": now,
    }


def _advice(explanation: Explanation, facts: JobFacts | None = None) -> list[Advised]:
    head = None if facts is None or facts.lane is None else facts.lane.head
    return [advised(line, head) for line in explanation.advice]


def _headers(context: PageContext, job: Job) -> list[tuple[str, str]]:
    return [
        (name, REDACTED if context.redaction.hides(name) else value)
        for name, value in sorted((job.spec.headers or {}).items())
    ]


def _progress(store: Store, job: Job) -> Reported | None:
    return reported_run(store.presence, job.spec.id, job.attempt) if job.state is JobState.LEASED else None


# What it belongs to ----------------------------------------------------------------------------------------------


def _relatives(store: Store, facts: JobFacts) -> Relatives:
    job = facts.job
    stem, _, name = job.spec.id.rpartition("/")
    parent = store.job(stem) if stem and name.isdecimal() else None
    is_child = parent is not None and followup_id(parent.spec.id, int(name)) == job.spec.id
    return Relatives(parent if is_child else None, facts.before, _following(store, job), _lane(store, job))


def _following(store: Store, job: Job) -> list[Job]:
    """Return the jobs that its commit and its success enqueued: their ids follow from its own (I6)."""
    has_committed = any(one.committed_at is not None for one in job.executions)
    if not has_committed and not any(one.status is ExecutionStatus.DONE for one in job.executions):
        return []
    ids = [followup_id(job.spec.id, index) for index in range(FOLLOWUPS_LOOKED_UP)]
    ids += [then_id(job.spec.id), end_id(job.spec.id)]
    return list(store.jobs(JobFilter(job_ids=tuple(ids)), limit=len(ids)).jobs)


def _lane(store: Store, job: Job) -> list[Job]:
    """Return its neighbours in the lane, by a bounded look to both sides in the order of the store."""
    if job.spec.lane is None:
        return []
    where = JobFilter(queue=job.spec.queue, lane=job.spec.lane)
    before = store.jobs(where, limit=LANE_SHOWN // 2, after=job.seq, newest_first=True).jobs
    behind = store.jobs(where, limit=LANE_SHOWN // 2, after=job.seq).jobs
    return [*reversed(before), job, *behind]


# Downloads -------------------------------------------------------------------------------------------------------


def downloads(context: PageContext) -> Response:
    """Return the payload or the result as a file, redacted as on the page. A browser never opens it as a page."""
    job = context.store.job(context.asked("id") or "")
    part = context.asked("part")
    content = None if job is None else {"payload": job.spec.payload, "result": job.result}.get(part or "")
    if job is None or content is None:
        raise NotFound("there is no such content: the job is not there any more, or has no result")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.spec.id)[:80]
    headers = {"Content-Disposition": f'attachment; filename="{name}-{part}.json"'}
    return Response(context.redaction.document(content), media_type="application/json", headers=headers)


PAGE: Final = Page("job", "/job", "Job", "job.html", read)
