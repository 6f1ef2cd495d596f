"""What a worker settles with the store before its first claim, and looks at again: limits and the queues' policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from leasemill.api.observer import Observer
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import QUEUE_LIMIT, LimitTerms
from leasemill.store.backoff import backoff_s
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.settings import Settings

log = logging.getLogger("leasemill.worker")


class QueuePolicies:
    """The policies of the queues that a worker serves, and whether one of them has a limit."""

    def __init__(self, settings: Settings, most_ahead: int) -> None:
        self._worker_id = settings.worker_id
        self._app = settings.app
        self._store = settings.app.store
        self._queues = tuple(settings.queues)
        self._times = settings.times
        self._metrics = settings.metrics
        self._observers = settings.observers
        self._most_ahead = most_ahead
        self.most_ahead = most_ahead
        """How many jobs may be held ahead of their slots: none from queues that have a limit (T8)."""
        self.has_limit = False

    async def settle(self) -> None:
        """Declare the limits and read the policies, however long the store is unavailable."""
        failures, fields = 0, {"worker": self._worker_id}
        while True:
            try:
                if terms := self._app.limits:
                    await self._store.arun(declaration(terms, self._worker_id))
                policies = await self._store.arun(c.GetPolicies(self._queues))
                self._times.adopt(dict(zip(self._queues, policies, strict=True)))
                self._look(await self._store.arun(queue_limits()))
                break
            except Unavailable as error:
                failures += 1
                self._metrics.unavailable += 1
                self._observers.notify(Observer.store_failed, "queue policies")
                if failures == 1:
                    log.warning("the store is unavailable, will retry: %s", error, extra=fields)
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))
        if failures:
            log.info("the store is available again", extra=fields)

    def _look(self, found: list[c.LimitView]) -> None:
        self.has_limit = any_limited(self._queues, found)
        self.most_ahead = 0 if self.has_limit else self._most_ahead

    def read_again(self, heartbeat: Heartbeat) -> None:
        """O4: a queue's policy may change at any time. What was given and does not fit it any more is replaced."""
        times, fields = self._times, {"worker": self._worker_id}
        self._look(self._store.run(queue_limits()))
        policies = self._store.run(c.GetPolicies(self._queues))
        if not times.adopt(dict(zip(self._queues, policies, strict=True))):
            return
        heartbeat.set_interval(times.heartbeat_s)
        for sentence in times.broken_rules():
            log.warning("a queue's policy does not fit this worker: %s", sentence, extra=fields)
        log.info(
            "queue policies changed: reaper every %g s, shutdown within %g s, shortest lease %g s",
            times.reaper_s,
            times.shutdown_s,
            times.shortest_lease_s,
            extra=fields,
        )


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
