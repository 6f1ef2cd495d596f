"""The table of pages: one row for each, in the order of the navigation."""

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
    queue,
    queues,
    refusals,
    schedules,
    workers,
)

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
    queue.PAGE,
    bulk_actions.PAGE,
    bulk_actions.ONE,
)
