"""One lease in a worker's hands, from the claim's reply to the report."""

from __future__ import annotations

import asyncio
import math
import time
from enum import Enum, auto
from typing import Any

from leasemill.api.context import Context
from leasemill.api.job import JobType
from leasemill.api.loss import LossSignal
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.base import Store
from leasemill.worker.pacing import held_until


class Phase(Enum):
    QUEUED = auto()
    """Claimed, waiting for a slot."""
    RUNNING = auto()
    """Its handler runs, or is about to: the heartbeat extends it."""
    ENDED = auto()
    """Its report is given or dropped; the handler may still be running, if nobody can stop it."""


class Stop(Enum):
    """Why the worker told a handler to stop."""

    TIMEOUT = auto()
    LOST = auto()
    SHUTDOWN = auto()


class Run:
    """What the worker knows of one lease. Changed on the event loop, but for the lease's times (the heartbeat)."""

    __slots__ = (
        "_call",
        "abandon_at",
        "beat_after",
        "blocked_s",
        "claimed_at",
        "context",
        "ended_at",
        "error",
        "expires_at",
        "is_start_told",
        "is_stuck",
        "job",
        "lease",
        "lease_s",
        "left_at",
        "loss",
        "phase",
        "sent_at",
        "stalled_before_s",
        "started_at",
        "stop",
        "task",
        "timeout_at",
    )

    def __init__(self, lease: c.Lease, job: JobType[..., Any], sent_at: float) -> None:
        self.lease = lease
        self.job = job
        self.lease_s = lease.terms.lease_ttl_us / SECOND
        self.claimed_at = sent_at
        self.sent_at = sent_at
        """Monotonic time from which the lease counts: before the call that granted or last extended it was sent."""
        self.expires_at = lease.expires_at
        """By the store's clock, as the store last said."""
        self.beat_after = 0.0
        """Monotonic time before which the store is not asked again for an extension it did not give."""
        self.loss = LossSignal(held_until(sent_at, self.lease_s))
        self.phase = Phase.QUEUED
        self.stop: Stop | None = None
        self.started_at = 0.0
        self.timeout_at = math.inf
        self.stalled_before_s = 0.0
        """How long the event loop had stood still before this run, in total, or up to which this run was excused."""
        self.blocked_s = 0.0
        """How long this handler itself has blocked the event loop."""
        self.abandon_at: float | None = None
        self.left_at: float | None = None
        """When the worker stopped waiting for a handler that has not returned: it still has its slot."""
        self.is_stuck = False
        """It has not returned for long since then."""
        self.is_start_told = False
        self.task: asyncio.Task[None] | None = None
        self.context: Context | None = None
        self._call: tuple[tuple[Any, ...], dict[str, Any]] | Exception = ((), {})
        self.ended_at = 0.0
        self.error: BaseException | None = None
        """What the handler raised, for the log; until its end is reported."""

    @classmethod
    def without_handler(cls, lease: c.Lease, sent_at: float) -> Run:
        """A lease that no handler here can run."""
        run = cls.__new__(cls)
        run.lease = lease
        run.sent_at = sent_at
        run.started_at = 0.0
        run.is_start_told = True
        run.context = None
        run.ended_at = 0.0
        run.error = None
        run.stop = None
        run.phase = Phase.ENDED
        return run

    def begin(self, store: Store) -> None:
        """The handler is about to be called."""
        now = time.monotonic()
        self.phase = Phase.RUNNING
        self.started_at = now
        self.timeout_at = now + self.lease.terms.timeout_us / SECOND
        if self.job.arguments.takes_context:
            self.context = Context(self.lease, self.job, store, self.loss, self.timeout_at)

    def mismatch(self) -> str | None:
        """Why the job's arguments do not fit its handler; None if they do, and `arguments` has them."""
        try:
            self._call = self.job.arguments.decode(self.lease.job.payload)
        except Invalid as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 (the user's `__post_init__`: fails the job as the handler would)
            self._call = error
        return None

    def excuse(self, seconds: float) -> None:
        """Allow the handler this much more time: others had blocked the event loop for as long."""
        self.stalled_before_s += seconds
        self.timeout_at += seconds
        if self.context is not None:
            self.context.timeout_at = self.timeout_at

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the handler is called with."""
        if isinstance(self._call, Exception):
            raise self._call
        args, kwargs = self._call
        return (args if self.context is None else (self.context, *args)), kwargs

    def extended(self, sent_at: float, expires_at: int, *, is_repeat: bool) -> bool:
        """Take over the end of the lease that the store returned; False if that is not later than before (L9).

        A later end counts from before the call was sent. A call that repeats one whose reply was lost may only have
        read what that one did: then the lease has gained the difference between the two ends, and no more.
        """
        gained_s = (expires_at - self.expires_at) / SECOND
        if gained_s <= 0:
            return False
        self.expires_at = expires_at
        self.sent_at = min(sent_at, self.sent_at + gained_s) if is_repeat else sent_at
        self.loss.held_until = held_until(self.sent_at, self.lease_s)
        return True

    @property
    def is_held(self) -> bool:
        return not self.loss.is_set()

    @property
    def log_fields(self) -> dict[str, Any]:
        lease = self.lease
        return {"job": lease.job.id, "kind": lease.job.kind, "attempt": lease.attempt, "worker": lease.worker}
