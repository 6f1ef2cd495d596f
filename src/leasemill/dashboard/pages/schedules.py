"""Schedules: last and next runs, which are paused, and the ticks that made no job, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from leasemill.api.cron import ticks_after
from leasemill.dashboard.page_types import Page, PageContext
from leasemill.errors import Invalid, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job
from leasemill.kernel.schedule import Overlap, Schedule, Skip, SkipReason
from leasemill.kernel.transitions.actions import DECLARED
from leasemill.operator.missing_job import local
from leasemill.store.base import Store

SCHEDULES_READ: Final = 200
SKIPS_SHOWN: Final = 50
NEXT_SHOWN: Final = 5


class ScheduleOnPage(Struct, frozen=True):
    """`job`: of its last run; None: there was none, or it is forgotten. `is_declared`: by code of a worker that is up;
    None: it was set by an app or an operator."""

    schedule: Schedule
    job: Job | None
    is_declared: bool | None

    @property
    def skipped(self) -> int:
        return sum(self.schedule.skipped.values())


class SkipOnPage(Struct, frozen=True):
    schedule: Schedule
    skip: Skip
    why: str


def read(context: PageContext) -> Mapping[str, Any]:
    name = context.asked("name")
    now = context.store.time()
    if name is not None:
        return _one(context, name, now)
    found = context.store.run(c.ListSchedules(SCHEDULES_READ))
    rows = _rows(context, found)
    return {
        "row": None,
        "rows": rows,
        "skips": skips_of(found)[:SKIPS_SHOWN],
        "skipped": sum(row.skipped for row in rows),
        "fired": sum(one.fired for one in found),
        "paused": sum(one.pause is not None for one in found),
        "next_at": min((one.next_at for one in found if one.pause is None), default=None),
        "is_cut": len(found) == SCHEDULES_READ,
        "most": SCHEDULES_READ,
        "local": local,
        "now": now,
    }


def _one(context: PageContext, name: str, now: int) -> Mapping[str, Any]:
    schedule = context.store.run(c.GetSchedule(name))
    if schedule is None:
        raise NotFound(f"there is no schedule {name!r}: it was never set, or has been removed")
    (row,) = _rows(context, [schedule])
    return {
        "title": name,
        "row": row,
        "next_ticks": next_ticks(schedule),
        "payload": context.redaction.text(schedule.spec.call.payload),
        "skips": skips_of([schedule]),
        "local": local,
        "now": now,
    }


def _rows(context: PageContext, found: Sequence[Schedule]) -> list[ScheduleOnPage]:
    workers = () if context.sample is None else context.sample.workers
    declared = {name for one in workers if not one.is_stale for name in one.record.schedules}
    jobs = _last_jobs(context.store, found)
    return [
        ScheduleOnPage(
            one,
            jobs.get(one.last_job_id or ""),
            one.spec.name in declared if one.set_reason == DECLARED else None,
        )
        for one in found
    ]


def _last_jobs(store: Store, found: Sequence[Schedule]) -> dict[str, Job]:
    ids = tuple(one.last_job_id for one in found if one.last_job_id is not None)
    if not ids:
        return {}
    return {job.spec.id: job for job in store.jobs(c.JobFilter(job_ids=ids), limit=len(ids)).jobs}


def next_ticks(schedule: Schedule, count: int = NEXT_SHOWN) -> list[int]:
    spec = schedule.spec
    try:
        following = islice(ticks_after(spec.expression, spec.zone, schedule.next_at), count - 1)
        return [schedule.next_at, *following]
    except Invalid:
        return [schedule.next_at]  # this machine does not know its zone


def skips_of(found: Sequence[Schedule]) -> list[SkipOnPage]:
    """Return the skipped ticks of all schedules, newest first."""
    skips = [SkipOnPage(one, skip, why_skipped(one, skip)) for one in found for skip in one.skips]
    return sorted(skips, key=lambda row: (-row.skip.tick_at, row.schedule.spec.name))


def why_skipped(schedule: Schedule, skip: Skip) -> str:
    match skip.reason:
        case SkipReason.OVERLAP:
            return "the job before it " + ("waited" if schedule.spec.overlap is Overlap.ONE else "had not ended")
        case SkipReason.MISSED:
            return f"no worker ran when it was due (missed {schedule.spec.missed.value})"
        case SkipReason.PAUSED:
            return "the schedule was paused"
        case SkipReason.UNIQUE:
            return "another job held its unique key"
        case SkipReason.REFUSED:
            return "its queue is used with acquire"


PAGE: Final = Page("schedules", "/schedules", "Schedules", "schedules.html", read, section="Control")
