"""`Context`: what a running handler knows of its job, and the one place where it takes effect, `commit`.

Everything here is about one execution. What must never happen: a commit sent twice with different content, or a
handler that is told its commit happened when the store did not say so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, assert_never

from leasemill import effects
from leasemill.errors import Invalid, JobConflict, LeaseLost, Refused, Unavailable
from leasemill.job import JobHandle, JobType
from leasemill.kernel import commands as c
from leasemill.kernel.decide import followup_id
from leasemill.store.base import FullStore
from leasemill.worker.pacing import backoff_s

P = ParamSpec("P")
R = TypeVar("R")

NOTE_LENGTH: Final = 200

_events_lock: Final = threading.Lock()


class LossSignal:
    """Tells a handler, in whatever thread it runs, that the job is not its own any more.

    Set by the worker, and by time: past `held_until` (the worker's monotonic time) the lease may be somebody else's
    even if nobody could tell us so.
    """

    __slots__ = ("_event", "held_until", "reason")

    def __init__(self, held_until: float) -> None:
        self.held_until = held_until
        self.reason: str | None = None
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None or time.monotonic() >= self.held_until

    def set(self, reason: str) -> None:
        with _events_lock:
            if self.reason is None:
                self.reason = reason
            if self._event is not None:
                self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most this many seconds; True if it is."""
        event = self._made_event()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            now = time.monotonic()
            until = self.held_until if deadline is None else min(deadline, self.held_until)
            if event.wait(max(0.0, until - now)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return self.is_set()
        return True

    def _made_event(self) -> threading.Event:
        with _events_lock:
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            return self._event


class Progress:
    """How far a handler says it is. Soft: shown to people, never stored with the job."""

    __slots__ = ("done", "note", "total")

    def __init__(self, done: float, total: float | None, note: str) -> None:
        self.done = done
        self.total = total
        self.note = note


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry the job, the attempt and the worker."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """One run of a job, as its handler sees it."""

    __slots__ = ("_applied", "_commit", "_job", "_lease", "_logger", "_store", "_timeout_at", "latest_progress", "lost")

    def __init__(
        self, lease: c.Lease, job: JobType[..., Any], store: FullStore, lost: LossSignal, timeout_at: float
    ) -> None:
        self.lost = lost
        """Set when the job is not this handler's any more: stop, whatever you do now changes nothing."""
        self.latest_progress: Progress | None = None
        self._lease = lease
        self._job = job
        self._store = store
        self._timeout_at = timeout_at
        self._logger: JobLogger | None = None
        self._commit: c.Commit | None = None
        self._applied: set[str] | None = None

    @property
    def job_id(self) -> str:
        return self._lease.job.id

    @property
    def kind(self) -> str:
        return self._lease.job.kind

    @property
    def queue(self) -> str:
        return self._lease.job.queue

    @property
    def lane(self) -> str | None:
        return self._lease.job.lane

    @property
    def worker(self) -> str:
        return self._lease.worker

    @property
    def attempt(self) -> int:
        """How many times the job has been claimed, this time included."""
        return self._lease.attempt

    @property
    def retries(self) -> int:
        """How many times the job has failed before."""
        return self._lease.retries

    @property
    def fence(self) -> int:
        """A number that rises with every claim in the store: others can refuse what comes with a lower one."""
        return self._lease.fence

    @property
    def idempotency_key(self) -> str:
        """The same in every run of this job: give it to others so that they recognise a repeat."""
        return self._lease.job.id

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._lease.created_at / 1_000_000, UTC)

    @property
    def deadline(self) -> datetime:
        """When the handler's time is up (the `timeout` of the job); the lease is renewed until then."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds_left)

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative when it has passed."""
        return self._timeout_at - time.monotonic()

    @property
    def is_committed(self) -> bool:
        """The commit of this run has been sent; from then on the job can only succeed, or be somebody else's."""
        return self._commit is not None

    @property
    def has_committed_without_result(self) -> bool:
        return self._commit is not None and self._commit.result is None

    @property
    def logger(self) -> JobLogger:
        if self._logger is None:
            bound = {"job": self.job_id, "kind": self.kind, "attempt": self.attempt, "worker": self.worker}
            self._logger = JobLogger(logging.getLogger("leasemill.job"), bound)
        return self._logger

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far this run is. Shown beside the worker, safe to lose, and cheap: call it as often as you like."""
        self.latest_progress = Progress(float(done), None if total is None else float(total), str(note)[:NOTE_LENGTH])

    def commit(self) -> Transaction:
        """The commit boundary: `with ctx.commit() as tx` in a thread, `async with ctx.commit() as tx` on the loop.

        Leaving the block records, in one fact and once per job, that the job took effect, with its follow-up jobs and
        its result. Raises LeaseLost if the job is not this handler's any more: then nothing happened; stop.
        """
        if self._commit is not None:
            raise Invalid(f"job {self.job_id!r} has committed in this run already; one commit holds everything")
        return Transaction(self, self._lease, self._job, self._store)

    def once(self, connection: effects.Connection, effect: str | None = None) -> effects.Once:
        """`with ctx.once(connection) as first`: apply an effect in another database than the store's once per job.

        Leaving the block commits what it wrote, with a guard row; what a second run writes is rolled back. A job with
        several effects names each. Raises LeaseLost if the job is known not to be this handler's any more.
        """
        if self._applied is None:
            self._applied = set()
        return effects.Once(connection, self.job_id, effect or self.kind, self.fence, self._check_held, self._applied)

    def http_headers(self, effect: str | None = None) -> dict[str, str]:
        """Idempotency-Key, the same in every run, and Leasemill-Fence, which rises; several calls name each."""
        return effects.http_headers(self.job_id, effect, self.fence)

    def _check_held(self) -> None:
        if self.lost.is_set():
            raise LeaseLost(self.job_id, "once", self.lost.reason or "expired", self.attempt, self.attempt)


class Transaction:
    """What takes effect with the commit: follow-up jobs and the result. Sent when its block is left without error."""

    __slots__ = ("_context", "_followups", "_is_open", "_job", "_lease", "_result", "_store")

    def __init__(self, context: Context, lease: c.Lease, job: JobType[..., Any], store: FullStore) -> None:
        self._context = context
        self._lease = lease
        self._job = job
        self._store = store
        self._followups: list[c.Followup] = []
        self._result: bytes | None = None
        self._is_open = False

    def enqueue(self, job: JobType[P, R], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a follow-up job with the commit: all of it happens, or none."""
        self._check_open()
        followup = job.followup(*args, **kwargs)
        self._followups.append(followup)
        job_id = followup_id(self._lease.job.id, len(self._followups) - 1)
        return JobHandle(self._store, job_id, followup.queue, job.arguments)

    def set_result(self, value: object) -> None:
        """The job's result. What the handler returns after a commit is not kept, so it is said here."""
        self._check_open()
        self._result = self._job.arguments.encode_result(value)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Invalid("this commit is not open: use it inside its `with` or `async with` block")

    def _open(self) -> Transaction:
        if self._context.is_committed or self._is_open:
            raise Invalid(f"job {self._lease.job.id!r} commits twice in this run; one commit holds everything")
        self._is_open = True
        return self

    def _close(self) -> c.Commit:
        self._is_open = False
        if self._context.is_committed:
            raise Invalid(f"job {self._lease.job.id!r} commits twice in this run; one commit holds everything")
        return c.Commit(self._lease.job.id, self._lease.token, self._result, tuple(self._followups))

    def __enter__(self) -> Transaction:
        if _is_on_event_loop():
            raise Invalid("this handler runs on the event loop: write `async with ctx.commit() as tx`")
        return self._open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._is_open = False
            return None
        command = self._context._commit = self._close()
        failures = 0
        while True:
            try:
                return self._settle(self._store.run(command))
            except Unavailable:
                failures += 1
                if self._context.lost.wait(backoff_s(failures, self._store.entropy.jitter())):
                    raise self._given_up() from None
            except Refused:
                self._forget_if_refused()
                raise

    async def __aenter__(self) -> Transaction:
        return self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._is_open = False
            return None
        command = self._context._commit = self._close()
        failures = 0
        while True:
            try:
                return self._settle(await self._store.arun(command))
            except Unavailable:
                failures += 1
                if self._context.lost.is_set():
                    raise self._given_up() from None
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))
            except Refused:
                self._forget_if_refused()
                raise

    def _settle(self, outcome: c.CommitOutcome) -> None:
        match outcome:
            case c.Committed():
                return
            case c.Conflict(job_id=job_id):
                raise JobConflict(job_id)
            case c.Lost(reason=reason, current_attempt=current_attempt):
                self._context.lost.set(reason)
                raise self._lost(reason, current_attempt)
            case _:
                assert_never(outcome)

    def _forget_if_refused(self) -> None:
        """X6: a commit that is refused whole did not happen, and the lease is as it was: another may be tried."""
        if not self._context.lost.is_set():
            self._context._commit = None

    def _given_up(self) -> LeaseLost:
        """The store was not heard until the lease was over: that is a loss, not a failure of the handler."""
        self._context.lost.set("it could not be extended in time")
        return self._lost("expired", self._lease.attempt)

    def _lost(self, reason: str, current_attempt: int) -> LeaseLost:
        return LeaseLost(self._lease.job.id, "commit", reason, self._lease.attempt, current_attempt)


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
