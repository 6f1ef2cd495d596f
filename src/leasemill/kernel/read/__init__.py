"""The questions that can be asked of a state, their answers, and how they are answered.

Nothing here changes anything. Every answer is bounded by the question's limit, and is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leasemill.kernel.bounds import check_limit
from leasemill.kernel.command import Command
from leasemill.kernel.read.filter import check_filter
from leasemill.kernel.read.jobs import GetJob, GetKey, ListJobs, ListLeases, get_job, get_key, list_jobs, list_leases
from leasemill.kernel.read.queues import (
    DueIn,
    GetLane,
    GetOrder,
    GetPolicies,
    GetTime,
    GetTotals,
    ListActions,
    ListLanes,
    ListQueues,
    due_in,
    get_lane,
    get_policies,
    list_actions,
    list_lanes,
    list_queues,
    totals,
)
from leasemill.kernel.read.rules import (
    DueSchedules,
    GetGroup,
    GetLimit,
    GetSchedule,
    ListGroups,
    ListLimits,
    ListSchedules,
    NextTick,
    due_schedules,
    get_group,
    get_limit,
    get_schedule,
    list_groups,
    list_limits,
    list_schedules,
    next_tick,
)
from leasemill.kernel.state import State


def check(query: Command[Any]) -> None:
    if isinstance(
        query,
        ListJobs
        | ListQueues
        | ListLanes
        | ListActions
        | ListLeases
        | ListGroups
        | ListLimits
        | GetLimit
        | ListSchedules
        | DueSchedules,
    ):
        check_limit(query)
    if isinstance(query, ListJobs):
        check_filter(query.filter)


ANSWERS: Final[dict[type, Callable[[State, Any, int], Any]]] = {
    GetJob: get_job,
    GetKey: get_key,
    ListJobs: list_jobs,
    ListQueues: list_queues,
    GetLane: get_lane,
    ListLanes: list_lanes,
    ListActions: list_actions,
    GetOrder: lambda state, query, _now: state.worker_commands.get(query.instance),
    GetGroup: get_group,
    ListGroups: list_groups,
    DueIn: due_in,
    GetPolicies: get_policies,
    GetTotals: lambda state, _query, _now: totals(state),
    GetTime: lambda _state, _query, now: now,
    ListLimits: list_limits,
    GetLimit: get_limit,
    GetSchedule: get_schedule,
    ListSchedules: list_schedules,
    DueSchedules: due_schedules,
    NextTick: next_tick,
    ListLeases: list_leases,
}
