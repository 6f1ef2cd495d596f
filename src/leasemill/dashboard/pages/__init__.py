"""The table of pages: one row for each, in the order of the navigation."""

from __future__ import annotations

from typing import Final

from leasemill.dashboard.pages import job, jobs, overview, queues, sweeps
from leasemill.dashboard.viewing import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    jobs.PAGE,
    queues.PAGE,
    job.PAGE,
    sweeps.PAGE,
    sweeps.ONE,
)
