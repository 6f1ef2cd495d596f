"""A worker declares the limits of its code when it starts, and claims nothing ahead from queues that have a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import QUEUE_LIMIT, LimitTerms


def is_limited(lease: c.Lease) -> bool:
    rules = lease.job.rules
    return rules is not None and bool(rules.limits)


def declaration(terms: Mapping[str, LimitTerms], worker_id: str) -> c.DeclareLimits:
    """T6: last start wins; what another version declares and this one does not stays as it is."""
    return c.DeclareLimits([c.DeclaredLimit(name, one) for name, one in terms.items()], worker_id)


def queue_limits() -> c.ListLimits:
    """All limits of queues are among these."""
    return c.ListLimits(BATCH_ITEMS, QUEUE_LIMIT)


def any_limited(queues: Iterable[str], limits: Iterable[c.LimitView]) -> bool:
    """T8: whether one of these queues has a limit of its own."""
    return not {QUEUE_LIMIT + name for name in queues}.isdisjoint(limit.name for limit in limits)
