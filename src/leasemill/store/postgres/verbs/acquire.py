"""acquire: leases on offsets, decided by the kernel; alone, or after the ack of another (N13), in one transaction."""

from __future__ import annotations

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.base import has_ended
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.decide import Decide, LockSet, decide_all
from leasemill.store.postgres.steps import Steps, TransactionAttempt, Verb, transact


def acquire(context: VerbContext, command: c.Acquire) -> Verb[list[c.AcquireOutcome]]:
    requests = command.requests
    ids = [offset_id(request.queue, request.lane, request.offset) for request in requests]
    lanes = list({(request.queue, request.lane): None for request in requests})
    return context.decide(command, LockSet(ids, lanes, makes_lanes=True))


def ack_then_acquire(
    context: VerbContext, ack: c.AckReport, acquire: c.AcquireRequest
) -> Verb[tuple[c.AckOutcome, c.AcquireOutcome | None]]:
    lane = acquire.queue, acquire.lane
    lock_set = LockSet([ack.job_id, offset_id(*lane, acquire.offset)], [lane], makes_lanes=True)
    refusal: LeasemillError | None = None

    def work(attempt: TransactionAttempt) -> Steps[list[c.AckOutcome | c.AcquireOutcome]]:
        def decision(run: Decide) -> list[c.AckOutcome | c.AcquireOutcome]:
            nonlocal refusal
            refusal = None
            (outcome,) = run(c.Ack([ack]))
            if attempt.may_have_happened and isinstance(outcome, c.Acked):  # what looks like a repeat is our own
                outcome = c.Acked(outcome.job_id, outcome.next_in_lane)
            if not has_ended(outcome):
                return [outcome]
            try:
                return [outcome, *run(c.Acquire([acquire]))]
            except LeasemillError as error:  # the ack stands
                refusal = error
                return [outcome]

        return decide_all(context.known, decision, lock_set)

    acked, *acquired = yield from transact(work)
    yield from context.follow_decision()
    if refusal is not None:
        raise refusal
    return acked, acquired[0] if acquired else None  # type: ignore[return-value]
