"""Which commands a server takes: one row for each, with its path, the role it needs, and what repeating it does.

Pure data, read by the server, the client, the access rules and the reference. A command that is not here cannot be
asked for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from leasemill.kernel import commands as c
from leasemill.kernel.command import Command
from leasemill.wire import requests as r
from leasemill.wire.shapes import snake_case

PREFIX: Final = "/v1/"


class Role(StrEnum):
    """Whom a command or a key is for. Which other commands a role includes: `server.access.permissions`."""

    PRODUCER = "produce"
    WORKER = "work"
    READER = "read"
    OPERATOR = "operate"


class Route(Struct, frozen=True):
    """`is_repeatable`: sent twice it does what it does once, and the second answer serves as well as the first.
    `is_lookup`: it names one thing, so an answer of None is status 404."""

    name: str
    path: str
    command: type[Command[Any]]
    role: Role
    is_repeatable: bool = True
    is_lookup: bool = False


def _row(command: type[Command[Any]], role: Role, *, is_repeatable: bool = True, is_lookup: bool = False) -> Route:
    name = snake_case(command.__name__)
    return Route(name, PREFIX + name, command, role, is_repeatable, is_lookup)


def _operation(command: type[Command[Any]], *, is_lookup: bool = False) -> Route:
    """Recorded each time, and its answer is what it did this time."""
    return _row(command, Role.OPERATOR, is_repeatable=False, is_lookup=is_lookup)


def _lookup(command: type[Command[Any]]) -> Route:
    return _row(command, Role.READER, is_lookup=True)


ROUTES: Final = (
    _row(c.Enqueue, Role.PRODUCER),
    _row(c.Claim, Role.WORKER),
    _row(c.Start, Role.WORKER),
    _row(c.Extend, Role.WORKER),
    _row(c.Commit, Role.WORKER),
    _row(c.Ack, Role.WORKER),
    _row(c.Nack, Role.WORKER),
    _row(c.Release, Role.WORKER),
    _row(c.Acquire, Role.WORKER),
    _row(c.Expire, Role.WORKER),
    _row(c.Death, Role.WORKER),
    _row(c.Prune, Role.OPERATOR),
    _row(c.DeclareLimits, Role.WORKER),
    _row(c.CreateGroup, Role.PRODUCER),
    _row(c.SealGroup, Role.PRODUCER),
    _row(c.SetSchedule, Role.WORKER, is_repeatable=False),
    _row(c.DueSchedules, Role.WORKER),
    _row(c.NextTick, Role.WORKER),
    _row(c.FireTicks, Role.WORKER),
    _row(c.DueIn, Role.WORKER),
    _row(c.GetPolicies, Role.WORKER),
    _row(r.WatchQueues, Role.WORKER),
    _row(r.WatchCancellations, Role.WORKER),
    _row(r.PublishPresence, Role.WORKER),
    _row(r.RemovePresence, Role.WORKER),
    _row(r.ListPresence, Role.READER),
    _row(r.WatchEnd, Role.READER),
    _lookup(c.GetJob),
    _row(c.ListJobs, Role.READER),
    _row(c.ListLeases, Role.READER),
    _lookup(c.GetKey),
    _row(c.ListQueues, Role.READER),
    _lookup(c.GetLane),
    _row(c.ListLanes, Role.READER),
    _lookup(c.GetGroup),
    _row(c.ListGroups, Role.READER),
    _lookup(c.GetLimit),
    _row(c.ListLimits, Role.READER),
    _lookup(c.GetSchedule),
    _row(c.ListSchedules, Role.READER),
    _row(c.ListActions, Role.READER),
    _lookup(c.GetOrder),
    _row(c.GetTotals, Role.READER),
    _row(c.GetTime, Role.READER),
    _operation(c.Cancel),
    _operation(c.CancelGroup),
    _operation(c.Redrive),
    _operation(c.Purge),
    _operation(c.Pause),
    _operation(c.Resume),
    _operation(c.SetPolicy),
    _operation(c.OrderWorker),
    _operation(c.SetLimit),
    _operation(c.ClearLimit),
    _operation(c.RemoveSchedule, is_lookup=True),
    _operation(c.PauseSchedule, is_lookup=True),
    _operation(c.ResumeSchedule, is_lookup=True),
    _operation(c.FireNow, is_lookup=True),
    _operation(c.Backfill),
)

BY_PATH: Final = {route.path: route for route in ROUTES}
BY_COMMAND: Final = {route.command: route for route in ROUTES}
