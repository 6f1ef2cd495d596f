"""death: leases whose holders are proved to have ended. Rare, so the kernel decides them all."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.verbs.reports import report


def run(calls: Calls, command: c.Death) -> list[c.DeathOutcome]:
    return report(calls, command.reports, lambda *_: {}, c.Death)
