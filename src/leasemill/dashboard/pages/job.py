"""One job: why it is in its state, every attempt drawn to scale, what it carries and what binds it to others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from leasemill.dashboard.timeline import timeline
from leasemill.dashboard.viewing import Page, Viewing
from leasemill.errors import NotFound
from leasemill.kernel.model import Job, JobState
from leasemill.operator.absent import explain_absent
from leasemill.operator.explain import explain
from leasemill.operator.facts import gather
from leasemill.store.records import reported_run

PARTS: Final = ("payload", "result")


def read(viewing: Viewing) -> Mapping[str, Any]:
    job_id = viewing.asked("id") or ""
    now = viewing.store.time()
    facts = gather(viewing.store, job_id, now, viewing.at_work())
    if facts is None:
        absent = explain_absent(viewing.store, job_id)
        if absent is None:
            raise NotFound(f"there is no job {job_id!r}: it never existed, or retention or purge has removed it")
        return {"title": job_id, "job": None, "explanation": absent, "now": now}
    job = facts.job
    return {
        "title": job.spec.id,
        "job": job,
        "explanation": explain(facts),
        "facts": facts,
        "timeline": timeline(job, now),
        "payload": viewing.redaction.text(job.spec.payload),
        "result": None if job.result is None else viewing.redaction.text(job.result),
        "headers": _headers(viewing, job),
        "progress": _progress(viewing, job),
        "now": now,
    }


def _headers(viewing: Viewing, job: Job) -> list[tuple[str, str]]:
    return [
        (name, "(redacted)" if viewing.redaction.hides(name) else value)
        for name, value in sorted((job.spec.headers or {}).items())
    ]


def _progress(viewing: Viewing, job: Job) -> Any:
    if job.state is not JobState.LEASED:
        return None
    return reported_run(viewing.store.presence, job.spec.id, job.attempt)


def downloads(viewing: Viewing) -> Response:
    """The payload or the result as a file, redacted as on the page; a browser never opens it as a page."""
    job = viewing.store.job(viewing.asked("id") or "")
    part = viewing.asked("part")
    content = None if job is None else {"payload": job.spec.payload, "result": job.result}.get(part or "")
    if job is None or content is None:
        raise NotFound("there is no such content: the job is not there any more, or has no result")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", job.spec.id)[:80]
    headers = {"Content-Disposition": f'attachment; filename="{name}-{part}.json"'}
    return Response(viewing.redaction.document(content), media_type="application/json", headers=headers)


PAGE: Final = Page("job", "/job", "Job", "job.html", read)
