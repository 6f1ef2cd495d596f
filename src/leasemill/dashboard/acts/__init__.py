"""The table of acts: what an operator can do from a page."""

from __future__ import annotations

from typing import Final

from leasemill.dashboard.acts import groups, jobs, lanes, limits, queues, schedules, workers
from leasemill.dashboard.viewing import OperatorAct

ACTS: Final[dict[str, OperatorAct]] = {
    act.name: act
    for acts in (queues.ACTS, jobs.ACTS, lanes.ACTS, schedules.ACTS, groups.ACTS, limits.ACTS, workers.ACTS)
    for act in acts
}
