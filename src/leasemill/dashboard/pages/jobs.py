"""Jobs: a list with filters, newest first, read in bounded steps from a cursor that stays where it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from leasemill.dashboard.bulk_actions import Selection
from leasemill.dashboard.job_filter import filter_fields, selection_of
from leasemill.dashboard.page_types import Page, PageContext
from leasemill.kernel.model import Job, JobState
from leasemill.store.base import Store

PAGE_SIZE: Final = 50
LEASES_READ: Final = 500
LOOKED_AT_ONCE: Final = 500
MORE_FIELDS: Final = {"header", "group", "unique", "fingerprint", "after", "before"}
READ_FOR_S: Final = 0.05
"""A filter that fits few jobs ends the page after this long, and the page says so."""


class JobsFound(Struct, frozen=True):
    """`cursor`: where the next page begins, None: there is none. `is_short`: the reading was ended by the clock."""

    jobs: list[Job]
    cursor: int | None
    is_short: bool


def read(context: PageContext) -> Mapping[str, Any]:
    chosen = selection_of(context.query)
    cursor = context.number("cursor")
    found = find_jobs(context.store, chosen, cursor, are_timed=_are_timed(context))
    return {
        "found": found,
        "cursor": cursor,
        "fields": (fields := filter_fields(context.query)),
        "more_fields": sorted(MORE_FIELDS & fields.keys()),
        "states": list(JobState),
        "chosen_states": set(context.query.getlist("state")),
        "now": context.store.time(),
    }


def _are_timed(context: PageContext) -> bool:
    """Return whether every lease has an end, so that a list of leases names all jobs that are held."""
    totals = None if context.sample is None else context.sample.totals
    return totals is not None and totals.timed_leases == totals.counts[JobState.LEASED]


def find_jobs(
    store: Store, chosen: Selection, cursor: int, size: int = PAGE_SIZE, *, are_timed: bool = False
) -> JobsFound:
    if chosen.id_prefix is not None and (job := store.job(chosen.id_prefix)) is not None:
        return JobsFound([job], None, False)
    are_held = chosen.where.states == frozenset({JobState.LEASED})
    if are_held and are_timed and (held := _leased(store, chosen, cursor, size)) is not None:
        return held
    jobs: list[Job] = []
    after: int | None = cursor
    until = time.monotonic() + READ_FOR_S
    while after is not None:
        at_once = LOOKED_AT_ONCE if chosen.looks_at_each else size
        page = store.jobs(chosen.where, limit=at_once, after=after, newest_first=True)
        for job in page.jobs:
            if chosen.fits(job):
                jobs.append(job)
                if len(jobs) == size:
                    return JobsFound(jobs, job.seq, False)
        after = page.after
        if time.monotonic() > until:
            return JobsFound(jobs, after, after is not None)
    return JobsFound(jobs, None, False)


def _leased(store: Store, chosen: Selection, cursor: int, size: int) -> JobsFound | None:
    """Find LEASED jobs by their leases, wherever they are in the store; None if there are more than that finds."""
    leases = store.leases(limit=LEASES_READ)
    if len(leases) == LEASES_READ:
        return None
    where = msgspec.structs.replace(chosen.where, job_ids=tuple(one.job_id for one in leases))
    page = store.jobs(where, limit=LEASES_READ, after=cursor, newest_first=True)
    jobs = [job for job in page.jobs if chosen.fits(job)]
    return JobsFound(jobs[:size], jobs[size - 1].seq if len(jobs) > size else None, False)


PAGE: Final = Page("jobs", "/jobs", "Jobs", "jobs.html", read, section="Now")
