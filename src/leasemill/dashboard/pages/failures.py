"""Failures: failed and quarantined jobs grouped by cause. Groups a bounded number of them, the newest, and says so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import REDRIVEN_STATES, JobState
from leasemill.operator.fingerprint import OTHERS, Group, Groups
from leasemill.store.base import Store

STEP: Final = 500
MOST: Final = 5_000
READ_FOR_S: Final = 0.25
SHOWN: Final = 100


class FailuresFound(Struct, frozen=True):
    """The failures, in groups. `jobs`: how many were grouped. `is_all`: the store has no more."""

    groups: list[Group]
    jobs: int
    is_all: bool


def read(context: PageContext) -> Mapping[str, Any]:
    queue, kind = context.asked("queue"), context.asked("kind")
    where = JobFilter(queue=queue, kind=kind, states=REDRIVEN_STATES)
    found = context.once(("failures", queue, kind), lambda: find_failures(context.store, where))
    sample = context.sample
    queues = (
        []
        if sample is None
        else [one for one in sample.queues if one.counts[JobState.FAILED] + one.counts[JobState.DEAD]]
    )
    return {
        "found": found,
        "groups": found.groups[:SHOWN],
        "shown": SHOWN,
        "most": max((one.count for one in found.groups), default=1),
        "others": OTHERS,
        "queue": queue,
        "kind": kind,
        "queues": queues[:SHOWN],
        "sweeps": [one for one in context.bulk_actions.all() if not one.is_over],
        "quarantined": 0 if sample is None else sample.totals.counts[JobState.DEAD],
        "now": context.store.time(),
    }


def find_failures(store: Store, where: JobFilter, for_s: float = READ_FOR_S) -> FailuresFound:
    until = time.monotonic() + for_s
    groups, jobs = Groups(), 0
    after: int | None = 0
    while after is not None and jobs < MOST:
        page = store.jobs(where, limit=STEP, after=after, newest_first=True)
        for job in page.jobs:
            groups.add(job)
        jobs += len(page.jobs)
        after = page.after
        if time.monotonic() > until:
            break
    return FailuresFound(groups.largest_first(), jobs, after is None)


PAGE: Final = Page("failures", "/failures", "Failures", "failures.html", read, section="Trouble")
