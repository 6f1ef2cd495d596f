"""Refusals: reports that came too late, of workers that had lost their lease, and what they would have done.

Refusals are recorded on their jobs, and no store has an index of them. So a bounded sample of jobs is read, those where
refusals are likely: jobs that are held, the newest that failed, those enqueued before the oldest held one, and then as
many of the newest as a bounded time allows. The page says how many that were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import UNSUCCESSFUL_STATES, ExecutionStatus, Job, LossReason, Refusal, ReportVerb, Verb
from leasemill.store.base import Store

STEP: Final = 250
EACH: Final = 500
"""So many jobs of each kind are read."""
NEWEST: Final = 5_000
READ_FOR_S: Final = 0.1
SHOWN: Final = 100
NOBODY: Final = "nobody"

ATTEMPTED: Final[dict[ReportVerb, str]] = {
    Verb.START: "start the handler",
    Verb.EXTEND: "extend the lease",
    Verb.COMMIT: "commit a result and follow-ups",
    Verb.ACK: "end the job as succeeded",
    Verb.NACK: "end the attempt as failed",
    Verb.RELEASE: "give the job back",
}
WHY: Final[dict[LossReason, str]] = {
    LossReason.EXPIRED: "its lease had expired",
    LossReason.SUPERSEDED: "a later attempt had the job",
    LossReason.ENDED: "its attempt had ended",
    LossReason.CANCELLED: "an operator had cancelled the job",
    LossReason.DIED: "its process was known to have died",
    LossReason.UNKNOWN: "no attempt ever had this token",
}


class RefusalOnPage(Struct, frozen=True):
    """`holder`: whose attempt was the latest when the report came; None: it is not kept, or the same worker's."""

    job: Job
    refusal: Refusal
    holder: str | None

    @property
    def attempted(self) -> str:
        return ATTEMPTED[self.refusal.verb]

    @property
    def would_have(self) -> str:
        return would_have(self.job, self.refusal)

    @property
    def why(self) -> str:
        return WHY[self.refusal.reason]


class RefusalsFound(Struct, frozen=True):
    """`jobs`: how many were looked at. `is_short`: the clock ended the reading."""

    rows: list[RefusalOnPage]
    jobs: int
    is_short: bool


def read(context: PageContext) -> Mapping[str, Any]:
    found = context.once("refusals", lambda: find_refusals(context.store))
    verb, worker = context.asked("verb"), context.asked("worker")
    rows = [
        row for row in found.rows if verb in (None, row.refusal.verb) and worker in (None, row.refusal.worker or NOBODY)
    ]
    verbs: dict[str, int] = {}
    for row in found.rows:
        verbs[row.refusal.verb.value] = verbs.get(row.refusal.verb.value, 0) + 1
    workers = () if context.sample is None else context.sample.workers
    rate = context.sampler.history.recent_rate(lambda one: one.refused)
    return {
        "found": found,
        "rows": rows[:SHOWN],
        "matching": len(rows),
        "shown": SHOWN,
        "verbs": sorted(verbs.items(), key=lambda item: (-item[1], item[0])),
        "verb": verb,
        "worker": worker,
        "nobody": NOBODY,
        "counted": int(sum(one.record.counters.get("refused", 0) for one in workers)),
        "a_minute": None if rate is None else 60 * rate,
        "jobs_hit": len({row.job.spec.id for row in found.rows}),
        "late_workers": len({row.refusal.worker for row in found.rows} - {None}),
        "now": context.store.time(),
    }


def find_refusals(store: Store, for_s: float = READ_FOR_S) -> RefusalsFound:
    until = time.monotonic() + for_s
    jobs: dict[str, Job] = {}
    is_short = False
    for page in _sampled(store):
        jobs.update((job.spec.id, job) for job in page)
        if time.monotonic() > until:
            is_short = True
            break
    rows = [RefusalOnPage(job, one, _holder(job, one)) for job in jobs.values() for one in job.refusals]
    rows.sort(key=lambda row: (-row.refusal.at, row.job.spec.id, row.refusal.verb))
    return RefusalsFound(rows, len(jobs), is_short)


def _sampled(store: Store) -> Iterator[tuple[Job, ...]]:
    held = store.leases(limit=EACH)
    ids = [one.job_id for one in held]
    for start in range(0, len(ids), STEP):
        yield store.jobs(JobFilter(job_ids=tuple(ids[start : start + STEP])), limit=STEP).jobs
    yield from _newest(store, JobFilter(states=UNSUCCESSFUL_STATES), 0, EACH)
    oldest = store.job(ids[0]) if ids else None
    if oldest is not None:
        yield from _newest(store, JobFilter(), oldest.seq, EACH)
    yield from _newest(store, JobFilter(), 0, NEWEST)


def _newest(store: Store, where: JobFilter, before: int, most: int) -> Iterator[tuple[Job, ...]]:
    after: int | None = before
    for _ in range(most // STEP):
        if after is None:
            return
        page = store.jobs(where, limit=STEP, after=after, newest_first=True)
        yield page.jobs
        after = page.after


def _holder(job: Job, refusal: Refusal) -> str | None:
    found = next((one.worker for one in job.executions if one.attempt == refusal.current_attempt), None)
    return None if refusal.attempt == refusal.current_attempt else found


def would_have(job: Job, refusal: Refusal) -> str:
    """Say what the report would have done if it had been accepted."""
    is_cancelled = refusal.reason is LossReason.CANCELLED
    match refusal.verb:
        case Verb.START | Verb.EXTEND:
            return "A cancelled job would have gone on." if is_cancelled else "Two workers could have run it at once."
        case Verb.COMMIT | Verb.ACK if is_cancelled:
            return "A cancelled job would have taken effect."
        case Verb.COMMIT | Verb.ACK if _took_effect(job, refusal):
            return "Its effects would have happened twice."
        case Verb.COMMIT | Verb.ACK:
            return "An attempt that had lost the job would have ended it."
        case Verb.RELEASE:
            return f"{_whose(is_cancelled)} would have been queued again."
        case Verb.NACK:
            return f"{_whose(is_cancelled)} would have been failed or retried."


def _whose(is_cancelled: bool) -> str:
    return "A cancelled job" if is_cancelled else "A job that it had lost"


def _took_effect(job: Job, refusal: Refusal) -> bool:
    """Return whether another attempt has done what this one reports."""
    return any(
        one.attempt != refusal.attempt and one.status in (ExecutionStatus.COMMITTED, ExecutionStatus.DONE)
        for one in job.executions
    )


PAGE: Final = Page("refusals", "/refusals", "Refusals", "refusals.html", read, section="Trouble")
