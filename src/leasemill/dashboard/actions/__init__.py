"""The table of actions: what an operator can do from a page."""

from __future__ import annotations

from typing import Final

from leasemill.dashboard.actions import groups, jobs, lanes, limits, queues, schedules, workers
from leasemill.dashboard.page_types import OperatorAction

ACTIONS: Final[dict[str, OperatorAction]] = {
    act.name: act
    for acts in (
        queues.ACTIONS,
        jobs.ACTIONS,
        lanes.ACTIONS,
        schedules.ACTIONS,
        groups.ACTIONS,
        limits.ACTIONS,
        workers.ACTIONS,
    )
    for act in acts
}
