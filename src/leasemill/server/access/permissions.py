"""The permissions of a key: its roles, and the queues that it is for.

Queues are patterns in which `*` stands for any characters and `?` for one. The route of a command names its role; here
are the commands that a role includes besides those.

- **read** looks at everything, and changes nothing.
- **produce** enqueues jobs, makes and seals groups, sets schedules, and looks at the job or group that it waits for.
- **work** claims jobs and reports on them, declares limits and schedules, fires ticks, and reads what a worker must.
- **operate** does what operators do, and reads.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

from leasemill.kernel import commands as c
from leasemill.store.access_keys import ALL_QUEUES, KEYS_KEPT, AccessKey
from leasemill.wire import requests as r
from leasemill.wire.problems import Denied, Problem
from leasemill.wire.routes import BY_COMMAND, ROUTES, Role

ALL: Final = ALL_QUEUES[0]


class Scope:
    """The queues of one key."""

    def __init__(self, key_name: str, patterns: tuple[str, ...]) -> None:
        self.key_name = key_name
        self.patterns = patterns
        self.is_all = ALL in patterns
        self._regex = re.compile("|".join(translate(pattern) for pattern in patterns))

    def has(self, queue: str) -> bool:
        return self.is_all or self._regex.match(queue) is not None

    def check(self, queue: str, item: str) -> None:
        """Refuse what is in another queue; `item` is what the client named, which must not learn the queue."""
        if not self.has(queue):
            raise self.outside(item)

    def outside(self, item: str) -> Exception:
        return forbidden(f"{item} is outside of key {self.key_name!r}, which is for {', '.join(self.patterns)}", item)


def scope_of(key: AccessKey) -> Scope:
    return _scope(key.name, key.queues)


@lru_cache(KEYS_KEPT)
def _scope(key_name: str, patterns: tuple[str, ...]) -> Scope:
    return Scope(key_name, patterns)


def forbidden(detail: str, item: str | None = None) -> Denied:
    """Return the refusal of a key's client, with the item that it named."""
    status = HTTPStatus.FORBIDDEN
    return Denied(Problem(status.value, status.phrase, "forbidden", detail, field=item))


WAITING: Final = frozenset({c.GetJob, c.GetGroup, r.WatchEnd, c.GetTime})
"""Commands that a client needs to wait for a job or a group."""

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
"""The commands that each role includes besides those of the routes that are for it."""


def roles_for(command: c.Command[Any]) -> frozenset[Role]:
    """Return the roles of which a key needs one."""
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
