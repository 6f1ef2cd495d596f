"""Which role includes which command. The route of a command names the role it is for; here is what else a role needs.

- **read** looks at everything, and changes nothing.
- **produce** enqueues jobs, makes and seals groups, sets schedules, and looks at the job or group that it waits for.
- **work** claims jobs and reports on them, declares limits and schedules, fires ticks, looks at what a worker must.
- **operate** does what operators do, and reads.
"""

from __future__ import annotations

from typing import Any, Final

from leasemill.kernel import commands as c
from leasemill.server.access.scope import forbidden, scope_of
from leasemill.store.access_keys import AccessKey
from leasemill.wire import requests as r
from leasemill.wire.routes import BY_COMMAND, ROUTES, Role

WAITING: Final = frozenset({c.GetJob, c.GetGroup, r.WatchEnd, c.GetTime})
"""What whoever waits for a job or a group needs."""

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

ALSO: Final[dict[Role, frozenset[type]]] = {
    Role.READER: frozenset({c.DueIn}),
    Role.PRODUCER: WAITING | {c.GetKey, c.GetSchedule, c.SetSchedule},
    Role.WORKER: WAITING
    | {c.GetLane, c.GetSchedule, c.ListLeases, c.ListLimits, c.ListQueues, c.ListSchedules, r.ListPresence},
    Role.OPERATOR: frozenset(route.command for route in ROUTES if route.role is Role.READER)
    | {c.Death, c.DueIn, c.SealGroup, c.SetSchedule, r.RemovePresence},
}
"""By role, commands that it includes besides those of the routes that are for it."""


def roles_for(command: c.Command[Any]) -> frozenset[Role]:
    """Those of which a key needs one."""
    kind = type(command)
    found = {BY_COMMAND[kind].role, *(role for role, also in ALSO.items() if kind in also)}
    match command:
        case c.SealGroup(by=by) if by:
            return frozenset({Role.OPERATOR})  # recorded as an operator's act
        case c.ListJobs(filter=c.JobFilter(group=group)) if group is not None:
            found |= {Role.PRODUCER, Role.WORKER}  # the members of a group that is waited for
    return frozenset(found)


def check_role(key: AccessKey, command: c.Command[Any]) -> None:
    needed = roles_for(command)
    if key.roles & needed:
        return
    raise forbidden(
        f"key {key.name!r} may {_listed(key.roles, 'and')}; {BY_COMMAND[type(command)].name} needs a key that may "
        f"{_listed(needed, 'or')}"
    )


def check_page(key: AccessKey, method: str) -> None:
    """Pages (figures, a dashboard) show the whole store: they need a key for all queues that may read, or operate where
    they change something."""
    needed = frozenset({Role.READER, Role.OPERATOR} if method in SAFE else {Role.OPERATOR})
    if not key.roles & needed or not scope_of(key).is_all:
        raise forbidden(
            f"pages need a key for all queues that may {_listed(needed, 'or')}; key {key.name!r} is another"
        )


def _listed(roles: frozenset[Role], word: str) -> str:
    *others, last = [role.value for role in Role if role in roles]
    return f"{', '.join(others)} {word} {last}" if others else last
