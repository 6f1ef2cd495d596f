"""What a claim is made of, and what is counted and logged about claims."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from leasemill.api.observer import Observer
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.operator.wording import counted, span
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Watch
from leasemill.worker import pacing
from leasemill.worker.settings import Settings

log = logging.getLogger("leasemill.worker")

QUEUES_READ: Final = 10_000


class Claims:
    """Makes the claims of one worker. It sends nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker_id = settings.worker_id
        self._store = settings.app.store
        self._metrics = settings.metrics
        self._observers = settings.observers
        self._names = list(settings.queues)
        self._credit: dict[str, int] = {}
        self._failures = 0

    def note(self, leases: list[c.Lease], took_s: float) -> None:
        self._metrics.claims += 1
        if not leases:
            self._metrics.claims_empty += 1
        if self._observers.are_there:
            self._observers.notify(Observer.store_called, "claim", took_s)
            self._observers.notify(Observer.claimed, leases, took_s)

    def new(self, size: int, free_slots: int) -> c.Claim:
        if len(self._names) > 1:
            order, self._credit = pacing.queue_order(self._settings.queues, self._credit)
        else:
            order = self._names
        *drawn, request = self._store.entropy.tokens(size + 1)
        begin = self._settings.instance
        length = len(begin)
        tokens = [begin + token[length:] for token in drawn]  # by which its leases are found should it die
        return c.Claim(self._worker_id, order, size, tokens, request, self._settings.kinds, free_slots)

    def failed(self, error: Unavailable) -> float:
        """A claim was not answered; returns how long to wait before it is repeated."""
        self._failures += 1
        self._metrics.unavailable += 1
        self._observers.notify(Observer.store_failed, "claim")
        if self._failures == 1:
            fields = {"worker": self._worker_id}
            log.warning("the store is unavailable, will retry the claim with back-off: %s", error, extra=fields)
        return backoff_s(self._failures, self._store.entropy.jitter())

    def answered(self) -> None:
        """A claim was answered, after failures perhaps."""
        if self._failures:
            log.info("the store is available again", extra={"worker": self._worker_id})
            self._failures = 0

    def due_in(self) -> c.DueIn:
        return c.DueIn(self._names)

    async def watch(self) -> Watch:
        failures = 0
        while True:
            try:
                return self._store.watch(self._names)
            except Unavailable:
                failures += 1
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))

    async def log_waiting_jobs(self) -> None:
        """The jobs that a drain leaves where they are: in paused queues, waiting for a retry, or due later."""
        fields, waiting = {"worker": self._worker_id}, 0
        with suppress(Unavailable):
            for queue in await self._store.arun(c.ListQueues(QUEUES_READ)):
                ready = queue.counts[JobState.READY] if queue.name in self._settings.queues else 0
                if queue.is_paused and ready:
                    message = "queue %s is paused, %s left waiting: leasemill queues resume %s lets workers have them"
                    log.warning(message, queue.name, counted(ready, "job"), queue.name, extra=fields)
                else:
                    waiting += ready
            due_in_us = await self._store.arun(c.DueIn(self._names)) if waiting else None
            if due_in_us is not None:
                advice = "" if self._settings.drain_wait_us else "; --drain-wait SECONDS waits for it"
                message = "no job is due: %s left waiting, the next is due in %s%s"
                log.info(message, counted(waiting, "job"), span(due_in_us), advice, extra=fields)
