"""The table of acts: what an operator can do from a page."""

from __future__ import annotations

from typing import Final

from leasemill.dashboard.acts import groups, jobs, lanes, limits, queues, schedules
from leasemill.dashboard.viewing import OperatorAct

ACTS: Final[dict[str, OperatorAct]] = {
    act.name: act for act in (*queues.ACTS, *jobs.ACTS, *lanes.ACTS, *schedules.ACTS, *groups.ACTS, *limits.ACTS)
}
