"""One lease in a worker's hands, from the claim's reply to the report."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from leasemill.api.context import Context
from leasemill.api.job import JobType
from leasemill.api.lease_loss import LossSignal
from leasemill.api.logs import job_fields
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
    """It is reported, or its report is dropped; the handler may still be running, if nobody can stop it."""


class Stop(Enum):
    """Why the worker stops a handler."""

    TIMEOUT = auto()
    LOST = auto()
    SHUTDOWN = auto()


class OwnProcess(Protocol):
    """The process in which a handler runs. Each call is about one run, and does nothing when that is over there."""

    @property
    def pid(self) -> int | None: ...
    def extended(self, run: Run) -> None: ...
    def stop(self, run: Run, reason: str) -> None: ...
    def kill(self, run: Run) -> None: ...


@dataclass(slots=True, eq=False)
class Run:
    """What the worker knows of one lease. Changed on the event loop, but for the lease's times (the heartbeat).

    Times are monotonic, but for `expires_at`.
    """

    lease: c.Lease
    job: JobType[..., Any] | None
    """None if this worker has no handler for it."""
    handler: JobType[..., Any] = field(init=False)
    """The job, where there is one."""
    sent_at: float
    """When the lease begins to count: before the call that granted or last extended it was sent."""
    claimed_at: float = field(init=False)
    lease_s: float = field(init=False)
    expires_at: int = field(init=False)
    """When the lease expires by the store's clock, as the store last returned it."""
    loss: LossSignal = field(init=False)
    beat_after: float = 0.0
    """Before this the store is not asked again for an extension it did not give."""
    phase: Phase = Phase.QUEUED
    stop: Stop | None = None
    is_begun: bool = False
    """Its handler is being called, or the hooks that come before."""
    started_at: float = 0.0
    is_start_reported: bool = False
    timeout_at: float = math.inf
    stalled_before_s: float = 0.0
    """How long the event loop had stood still before this run, in total, or up to which this run was excused."""
    blocked_s: float = 0.0
    """How long this handler itself has blocked the event loop."""
    abandon_at: float | None = None
    left_at: float | None = None
    """When the worker stopped waiting for a handler that has not returned: it still has its slot."""
    is_stuck: bool = False
    """It has not returned for long since then."""
    ended_at: float = 0.0
    has_ended_in_time: bool = False
    """X8: the handler ended before `loss` was set, so how it ended is how the job is reported."""
    task: asyncio.Task[None] | None = None
    """Where its handler runs on the event loop, or will."""
    is_in_line: bool = False
    """That task calls other handlers first."""
    process: OwnProcess | None = None
    """Where the handler runs, if not in this process; until it is gone."""
    kill_at: float | None = None
    """When its process is killed, if the handler has not ended by then."""
    is_given_back_at_end: bool = False
    """The worker waits for its handler no longer: it is released when that has ended, and not before (C7)."""
    context: Context | None = None
    raised: BaseException | None = None
    """What the handler raised, for hooks; until its end is reported."""
    error: BaseException | None = None
    """The same, if it is for the log."""
    is_never_retried: bool = False
    """What the handler raised is not retried, as its declaration says."""
    _call: tuple[tuple[Any, ...], dict[str, Any]] | Exception = ((), {})

    def __post_init__(self) -> None:
        if self.job is not None:
            self.handler = self.job
        self.claimed_at = self.sent_at
        self.lease_s = self.lease.terms.lease_ttl_us / SECOND
        self.expires_at = self.lease.expires_at
        self.loss = LossSignal(held_until(self.sent_at, self.lease_s))

    @property
    def is_committed(self) -> bool:
        """The handler's commit has been sent."""
        return self.context is not None and self.context.is_committed

    @property
    def is_alone(self) -> bool:
        """No other job waits for its end: for its lane, its group, its unique key or its place under a limit."""
        return self.lease.job.lane is None and self.lease.job.rules is None

    @property
    def waited_s(self) -> float | None:
        """From when the job was due to the start of its handler; None: it has run before, when it was due is not known.

        The store's clock as far as the claim, this process's from there.
        """
        lease = self.lease
        if lease.attempt > 1:
            return None
        spec = lease.job
        due_at = lease.created_at + spec.delay_us if spec.run_at is None else max(spec.run_at, lease.created_at)
        return max(0, lease.leased_at - due_at) / SECOND + self.started_at - self.claimed_at

    @property
    def ends_at(self) -> float:
        """When the lease is over, if it is not extended: not earlier than the store's clock has it."""
        return self.sent_at + self.lease_s

    @property
    def log_fields(self) -> dict[str, Any]:
        lease = self.lease
        return job_fields(lease.job.id, lease.job.kind, lease.attempt, lease.worker, lease.job.headers)

    def mismatch(self) -> str | None:
        """Why the job's arguments do not fit its handler; None if they do, and `arguments` has them."""
        try:
            self._call = self.handler.arguments.decode(self.lease.job.payload)
        except Invalid as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 (the user's `__post_init__`: fails the job as the handler would)
            self._call = error
        return None

    def begin(self, store: Store, state: Any, now: float, stopping: threading.Event) -> None:
        """The handler is about to be called."""
        self.phase = Phase.RUNNING
        self.started_at = now
        self.timeout_at = now + self.lease.terms.timeout_us / SECOND
        job = self.handler
        if job.arguments.takes_context or job.around_hooks:
            self.context = Context(self.lease, job, store, self.loss, self.timeout_at, state, stopping)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the handler is called with."""
        if isinstance(self._call, Exception):
            raise self._call
        args, kwargs = self._call
        return (self.context, *args) if self.handler.arguments.takes_context else args, kwargs

    def wait_for_process(self) -> None:
        """The handler begins when its process has started: until then no time passes for it."""
        self.started_at = 0.0
        self.timeout_at = math.inf

    def begin_in_process(self) -> None:
        """The handler is about to be called, in its process."""
        self.started_at = time.monotonic()
        self.timeout_at = self.started_at + self.lease.terms.timeout_us / SECOND
        if self.context is not None:
            self.context.timeout_at = self.timeout_at

    def note_commit(self) -> None:
        """The handler has committed in its process."""
        if self.context is not None and self.context.commit_sent is None:
            self.context.commit_sent = c.Commit(self.lease.job.id, self.lease.token)

    def excuse(self, seconds: float) -> None:
        """Allow the handler this much more time: others had blocked the event loop for as long."""
        self.stalled_before_s += seconds
        self.timeout_at += seconds
        if self.context is not None:
            self.context.timeout_at = self.timeout_at

    def extended(self, sent_at: float, expires_at: int, *, is_repeat: bool) -> bool:
        """Adopt the end of the lease that the store returned; False if that is not later than before (L9).

        A later end counts from before the call was sent. A call that repeats one whose reply was lost may only have
        read what that one did: then the lease has gained the difference between the two ends, and no more.
        """
        gained_s = (expires_at - self.expires_at) / SECOND
        if gained_s == 0:
            return False
        self.expires_at = expires_at
        # L9: no extension makes a lease shorter. An earlier end is that of a folder whose clock was set back (W17), and
        # there every extension is granted in full.
        has_own_end = not is_repeat or gained_s < 0
        self.sent_at = sent_at if has_own_end else min(sent_at, self.sent_at + gained_s)
        self.loss.held_until = held_until(self.sent_at, self.lease_s)
        if self.process is not None:
            self.process.extended(self)
        return True
