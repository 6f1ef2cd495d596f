"""claim: a worker takes the first jobs that are due. Rules C1 to C7, L7 and T2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.bounds import (
    BATCH_ITEMS,
    check_batch,
    check_limit,
    check_name,
    check_policy,
    check_range,
    check_strings,
    check_text,
)
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import AnyEvent, LeaseGranted, RateCharged
from leasemill.kernel.index.limit_index import charged
from leasemill.kernel.index.order import Entry
from leasemill.kernel.model import Job, Policy, QueueMode, Terms
from leasemill.kernel.state import PRIORITIES, Queue, State, has_place
from leasemill.kernel.transitions.grant import Lease, grant, has_had, lease
from leasemill.kernel.transitions.retry import settle_claimed
from leasemill.kernel.verbs import expire
from leasemill.kernel.verbs.expire import Expire

__all__ = ["Claim"]

HIGHEST_FIRST: Final = range(PRIORITIES - 1, -1, -1)
LOOK: Final = Expire(100)
"""L7: what a claim records before it looks for jobs. Bounded, so that no claim waits long after many workers died."""


class Claim(Command[list[Lease]], frozen=True):
    """Lease at most `limit` jobs of `queues` (in this order of preference); one token for each. At most `slots` of them
    are under a limit, their own or their queue's; None: any number (T8)."""

    worker: str
    queues: Sequence[str]
    limit: int
    tokens: Sequence[str]
    request_id: str | None = None
    kinds: Mapping[str, Policy] = {}
    slots: int | None = None


def check(command: Claim) -> None:
    check_text("worker", command.worker)
    if not command.queues:
        raise Invalid("claim names no queue: name at least one")
    check_batch(command.queues)
    for queue in command.queues:
        check_name("queue", queue)
    check_limit(command)
    if len(command.tokens) < command.limit or len(set(command.tokens)) != len(command.tokens):
        raise Invalid(f"claim of {command.limit} needs as many distinct tokens; it has {len(set(command.tokens))}")
    check_strings("token", command.tokens)
    if command.request_id is not None:
        check_text("request id", command.request_id)
    check_range("slots", command.slots, 0, BATCH_ITEMS)
    for kind, policy in command.kinds.items():
        check_name("kind", kind)
        check_policy(policy)


def steps(state: State, command: Claim, now: int, do: Do) -> list[Lease]:
    has_limits = _checked(state, command)
    if state.leases.first(1, now):  # L7: what has expired is claimable again
        do(expire.decide(state, LOOK, now))
        has_limits = _checked(state, command)  # it may be under limits
    repeated = _repeated(state, command, now)
    if repeated:
        return repeated  # C5: the same request, the same leases
    return _take_one_by_one(state, command, now, do) if has_limits else do(decide(state, command, now))


def _checked(state: State, command: Claim) -> bool:
    """N8: refuses claims from a queue that is used with acquire. Whether one of the queues has jobs under limits."""
    has_limits = False
    for name in command.queues:
        queue = state.queues.get(name)
        if queue is None:
            continue
        if queue.mode is QueueMode.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")
        if queue.gates is not None or queue.limit is not None:
            has_limits = True
    return has_limits


def decide(state: State, command: Claim, now: int) -> Decision[list[Lease]]:
    fence = state.fence
    events: list[LeaseGranted] = []
    leases: list[Lease] = []
    settled: dict[tuple[str, str], Terms] = {}
    for job in claimable(state, command, now):
        spec = job.spec
        terms = settled.get((spec.queue, spec.kind)) if spec.policy is None else None
        if terms is None:
            terms = settle_claimed(spec, state.queues[spec.queue].policy, command.kinds)
            if spec.policy is None:
                settled[spec.queue, spec.kind] = terms
        token = command.tokens[len(leases)]
        if job.attempt and has_had(job, token):
            break
        fence += 1
        event = grant(job, token, command.worker, command.request_id, fence, terms, now)
        events.append(event)
        leases.append(lease(job, event, now))
    return tuple(events), leases


def claimable(state: State, command: Claim, now: int) -> list[Job]:
    """C1 and C2: by the caller's order of queues, then priority, then available_at, then seq. Without limits."""
    found: list[Job] = []
    for queue in _open_queues(state, command):
        for priority in HIGHEST_FIRST:
            order = queue.ready[priority]
            if order is not None and len(found) < command.limit:
                found += order.first(command.limit - len(found), now)
    return found


def _open_queues(state: State, command: Claim) -> list[Queue]:
    found: list[Queue] = []
    for name in dict.fromkeys(command.queues):  # C7: a queue named twice gives its jobs once
        queue = state.queues.get(name)
        if queue is not None and not queue.is_paused:
            found.append(queue)
    return found


def _repeated(state: State, command: Claim, now: int) -> list[Lease]:
    granted = None if command.request_id is None else state.claims.get(command.request_id)
    if granted is None:
        return []
    return [
        lease(state.jobs[execution.job_id], execution, execution.leased_at)
        for _, execution in sorted(granted.items())  # by fence: as they were given
        if now < execution.expires_at
    ]


# Under limits ----------------------------------------------------------------------------------------------------


def _take_one_by_one(state: State, command: Claim, now: int, do: Do) -> list[Lease]:
    """T2: every grant takes its places and its share of the rates, and the next one is decided on what is left."""
    leases: list[Lease] = []
    slots = command.limit if command.slots is None else command.slots
    for queue in _open_queues(state, command):
        for priority in HIGHEST_FIRST:
            while len(leases) < command.limit:
                job = _next(queue, priority, now, may_be_limited=slots > 0)
                if job is None:
                    break
                token = command.tokens[len(leases)]
                if has_had(job, token):
                    return leases
                leases.append(do(_grant(state, command, job, token, now)))
                slots -= is_limited(queue, job)
    return leases


def _next(queue: Queue, priority: int, now: int, *, may_be_limited: bool) -> Job | None:
    """C1 and C2: the first job of a queue and priority that is claimable."""
    if queue.limit is not None and not (may_be_limited and has_place(queue)):
        return None
    order = queue.ready[priority]
    plain: Entry | None = None if order is None else order.head()
    entry = queue.gates.first(priority, now) if queue.gates is not None and may_be_limited else None
    if entry is None or (plain is not None and (plain[0], plain[1]) < (entry[0], entry[1])):
        entry = plain
    return None if entry is None or entry[0] > now else entry[2]


def is_limited(queue: Queue, job: Job) -> bool:
    """T8: whether the job is under a limit, its own or its queue's."""
    rules = job.spec.rules
    return queue.limit is not None or (rules is not None and bool(rules.limits))


def _grant(state: State, command: Claim, job: Job, token: str, now: int) -> Decision[Lease]:
    terms = settle_claimed(job.spec, state.queues[job.spec.queue].policy, command.kinds)
    event = grant(job, token, command.worker, command.request_id, state.fence + 1, terms, now)
    return (event, *_charges(state, job, now)), lease(job, event, now)


def _charges(state: State, job: Job, now: int) -> Iterator[AnyEvent]:
    """T11: a grant is charged to every rate the job is under."""
    rules = job.spec.rules
    for use in () if rules is None else rules.limits:
        limit = state.limits[use.name]
        if limit.terms.rate is not None:
            tat = limit.tally(use.key).tat
            yield RateCharged(use.name, use.key, now, charged(limit.terms, tat, now))
