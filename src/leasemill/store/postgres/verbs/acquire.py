"""acquire: leases on offsets, decided by the kernel."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.exact.decide import Concern


def run(calls: Calls, command: c.Acquire) -> list[c.AcquireOutcome]:
    requests = command.requests
    ids = [offset_id(request.queue, request.lane, request.offset) for request in requests]
    lanes = list({(request.queue, request.lane): None for request in requests})
    return calls.decide(command, Concern(ids, lanes, makes_lanes=True))
