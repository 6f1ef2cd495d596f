"""claim: a worker takes the first jobs that are due. Rules C1 to C7 and L7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.bounds import check_batch, check_limit, check_name, check_policy, check_string, check_text
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import LeaseGranted
from leasemill.kernel.fence import execution_of
from leasemill.kernel.grant import Lease, grant, lease
from leasemill.kernel.model import Job, Policy, QueueMode, Terms
from leasemill.kernel.retry import settle
from leasemill.kernel.state import PRIORITIES, State
from leasemill.kernel.verbs import expire
from leasemill.kernel.verbs.expire import Expire

__all__ = ["Claim"]


class Claim(Command[list[Lease]], frozen=True):
    """At most `limit` jobs of `queues` (in this order of preference); one token for each."""

    worker: str
    queues: Sequence[str]
    limit: int
    tokens: Sequence[str]
    request_id: str | None = None
    kinds: Mapping[str, Policy] = {}


def check(command: Claim) -> None:
    check_text("worker", command.worker)
    if not command.queues:
        raise Invalid("claim names no queue: name at least one")
    check_batch(command.queues)
    for queue in command.queues:
        check_name("queue", queue)
    check_limit(command)
    if len(command.tokens) < command.limit or len(set(command.tokens)) != len(command.tokens):
        raise Invalid(f"claim of {command.limit} needs as many different tokens; it has {len(set(command.tokens))}")
    for token in command.tokens:
        check_string("token", token)
    if command.request_id is not None:
        check_text("request id", command.request_id)
    for kind, policy in command.kinds.items():
        check_name("kind", kind)
        check_policy(policy)


def steps(state: State, command: Claim, now: int, do: Do) -> list[Lease]:
    for name in command.queues:
        _check_queue(state, name)
    leases = do(decide(state, command, now))
    if leases or not do(expire.decide(state, Expire(command.limit), now)):
        return leases
    return do(decide(state, command, now))  # L7: what has expired is claimable again


def _check_queue(state: State, name: str) -> None:
    """N8: refuses claims from a queue that is used with acquire."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")


def decide(state: State, command: Claim, now: int) -> Decision[list[Lease]]:
    repeated = _repeated(state, command, now)
    if repeated:
        return (), repeated  # C5: the same request, the same leases
    fence = state.fence
    events: list[LeaseGranted] = []
    leases: list[Lease] = []
    settled: dict[tuple[str, str], Terms] = {}
    for job in claimable(state, command, now):
        spec = job.spec
        token = command.tokens[len(leases)]
        if execution_of(job, token) is not None:
            break  # I2: a repeat that arrives after its leases ended does not make the old tokens good
        terms = settled.get((spec.queue, spec.kind)) if spec.policy is None else None
        if terms is None:
            terms = settle(spec.policy, state.queues[spec.queue].policy, command.kinds.get(spec.kind))
            if spec.policy is None:
                settled[spec.queue, spec.kind] = terms
        fence += 1
        event = grant(job, token, command.worker, command.request_id, fence, terms, now)
        events.append(event)
        leases.append(lease(job, event, now))
    return tuple(events), leases


def claimable(state: State, command: Claim, now: int) -> Iterator[Job]:
    """C1 and C2: by the caller's order of queues, then priority, then available_at, then seq."""
    left = command.limit
    for name in dict.fromkeys(command.queues):  # C7: a queue named twice gives its jobs once
        queue = state.queues.get(name)
        if queue is None or queue.is_paused:
            continue
        for priority in range(PRIORITIES - 1, -1, -1):
            order = queue.ready[priority]
            if order is None:
                continue
            if left <= 0:
                return
            found = order.first(left, now)
            left -= len(found)
            yield from found


def _repeated(state: State, command: Claim, now: int) -> list[Lease]:
    if command.request_id is None:
        return []
    granted = state.claims.get(command.request_id, {})
    return [
        lease(state.jobs[execution.job_id], execution, execution.leased_at)
        for _, execution in sorted(granted.items())  # by fence: as they were given
        if now < execution.expires_at
    ]
