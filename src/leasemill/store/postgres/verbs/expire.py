"""expire: the reaper's call. With it goes what else a store does beside its verbs."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.steps import Verb


def expire(context: VerbContext, command: c.Expire) -> Verb[list[c.Expiration]]:
    expired = yield from context.maintenance.run(command.limit)
    context.signal.notify()
    return expired
