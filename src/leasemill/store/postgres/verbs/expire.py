"""expire: the reaper's call. With it goes what else a store does beside its verbs."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls


def run(calls: Calls, command: c.Expire) -> list[c.Expiration]:
    expired = calls.maintenance.run(command.limit)
    calls.signal.notify()
    return expired
