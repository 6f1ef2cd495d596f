"""acquire: leases on offsets, decided by the kernel; alone, or after the ack of another (N13), in one transaction."""

from __future__ import annotations

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.base import has_ended
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.exact.decide import Concern, Decide, decide_steps
from leasemill.store.postgres.wire.connections import Connection


def run(calls: Calls, command: c.Acquire) -> list[c.AcquireOutcome]:
    requests = command.requests
    ids = [offset_id(request.queue, request.lane, request.offset) for request in requests]
    lanes = list({(request.queue, request.lane): None for request in requests})
    return calls.decide(command, Concern(ids, lanes, makes_lanes=True))


def after_ack(
    calls: Calls, ack: c.AckReport, acquire: c.AcquireRequest
) -> tuple[c.AckOutcome, c.AcquireOutcome | None]:
    lane = acquire.queue, acquire.lane
    concern = Concern([ack.job_id, offset_id(*lane, acquire.offset)], [lane], makes_lanes=True)
    tries = 0
    refusal: LeasemillError | None = None

    def steps(run: Decide) -> list[c.AckOutcome | c.AcquireOutcome]:
        nonlocal refusal
        refusal = None
        (outcome,) = run(c.Ack([ack]))
        if tries > 1 and isinstance(outcome, c.Acked):  # a reply was lost: what looks like a repeat is our own
            outcome = c.Acked(outcome.job_id, outcome.next_in_lane)
        if not has_ended(outcome):
            return [outcome]
        try:
            return [outcome, *run(c.Acquire([acquire]))]
        except LeasemillError as error:  # the ack stands
            refusal = error
            return [outcome]

    def work(connection: Connection) -> list[c.AckOutcome | c.AcquireOutcome]:
        nonlocal tries
        tries += 1
        try:
            return decide_steps(calls.database, connection, steps, concern)
        except BaseException:
            if not connection.closed:  # an answer, and nothing was committed: the next try is the first
                tries -= 1
            raise

    acked, *acquired = calls.connections.run(work)
    calls.follow_decision()
    if refusal is not None:
        raise refusal
    return acked, acquired[0] if acquired else None  # type: ignore[return-value]
