"""The table of pages, in the order of the navigation, and the numbers that stand beside them."""

from __future__ import annotations

from typing import Final

from leasemill.dashboard.page_types import Page
from leasemill.dashboard.pages import (
    audit,
    bulk_actions,
    failures,
    groups,
    job,
    jobs,
    lanes,
    leases,
    limits,
    overview,
    queues,
    refusals,
    schedules,
    workers,
)
from leasemill.dashboard.sampler import Sample
from leasemill.kernel.model import JobState

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    jobs.PAGE,
    queues.PAGE,
    leases.PAGE,
    workers.PAGE,
    failures.PAGE,
    refusals.PAGE,
    lanes.PAGE,
    schedules.PAGE,
    groups.PAGE,
    limits.PAGE,
    audit.PAGE,
    job.PAGE,
    queues.ONE,
    bulk_actions.PAGE,
    bulk_actions.ONE,
)


def _sections() -> dict[str, list[Page]]:
    found: dict[str, list[Page]] = {}
    for page in PAGES:
        if page.section is not None:
            found.setdefault(page.section, []).append(page)
    return found


SECTIONS = _sections()


def badges(sample: Sample | None) -> dict[str, int]:
    """Return numbers that are worth a look from every page, by the page's name. Zeros are left out."""
    if sample is None:
        return {}
    found = {
        "jobs": sample.totals.counts[JobState.READY] + sample.totals.counts[JobState.LEASED],
        "leases": sample.totals.counts[JobState.LEASED],
        "failures": sample.failed,
        "workers": sample.live_workers,
    }
    return {name: count for name, count in found.items() if count}
