"""`Context`: what a running handler knows about its job, and where it takes effect, `commit`.

Everything here is about one execution. What `commit` does is in `commit.py`, effects elsewhere are in `effects.py`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from leasemill.api import effects
from leasemill.api.commit import AsyncTransaction, Boundary, Gathered, Transaction
from leasemill.api.group import OwnGroup
from leasemill.api.job import JobType
from leasemill.api.lease_loss import NOT_EXTENDED, LossSignal
from leasemill.api.logs import job_fields
from leasemill.api.outcomes import Fail, Release, RetryAfter, Throttled
from leasemill.api.schedule_commands import tick_of
from leasemill.errors import Invalid, LeaseLost
from leasemill.kernel import commands as c
from leasemill.store.base import Store

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT_co = TypeVar("StateT_co", covariant=True, default=object)
else:
    from typing import TypeVar

    StateT_co = TypeVar("StateT_co", covariant=True)

NOTE_LENGTH: Final = 200


class Progress:
    """The progress that a handler reports. Shown to people, never stored with the job."""

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


class Context(Generic[StateT_co]):
    """A run of a job, as its handler sees it. `Context[State]`: with the type of what the app's lifespan yields."""

    __slots__ = (
        "_applied",
        "_job",
        "_lease",
        "_logger",
        "_state",
        "_store",
        "commit_sent",
        "latest_progress",
        "lost",
        "on_progress",
        "open_commit",
        "stopping",
        "timeout_at",
    )

    def __init__(
        self,
        lease: c.Lease,
        job: JobType[..., Any],
        store: Store,
        lost: LossSignal,
        timeout_at: float,
        state: StateT_co | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.lost = lost
        """Set when the job is no longer this handler's: stop. Whatever it returns or raises now is ignored, and
        `commit` raises LeaseLost."""
        self.stopping = stopping or threading.Event()
        """Set when the worker has begun to stop. The job is still this handler's, until `lost` is set: it may go on,
        return early, or raise Release to let another worker go on."""
        self.latest_progress: Progress | None = None
        self.on_progress: Callable[[], None] | None = None
        """Called after each report of progress, where others must learn of it."""
        self._lease = lease
        self._job = job
        self._store = store
        self.timeout_at = timeout_at
        """The deadline in monotonic time; later when others have blocked the event loop."""
        self._logger: JobLogger | None = None
        self.commit_sent: c.Commit | None = None
        """The commit of this run, from when it is about to be sent."""
        self.open_commit: Gathered | None = None
        """The commit whose block is running."""
        self._applied: set[str] | None = None
        self._state = state

    @property
    def job_id(self) -> str:
        """The id of the job, the same in every run."""
        return self._lease.job.id

    @property
    def kind(self) -> str:
        """The name that the job was declared with: by default that of its function."""
        return self._lease.job.kind

    @property
    def queue(self) -> str:
        """The queue that the job was claimed from."""
        return self._lease.job.queue

    @property
    def lane(self) -> str | None:
        """The key of the job's lane, whose jobs run one at a time and in order; None: it has no lane."""
        return self._lease.job.lane

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that travel with the job, in addition to its arguments."""
        return MappingProxyType(self._lease.job.headers or {})

    @property
    def state(self) -> StateT_co:
        """The value that the app's lifespan yielded where this runs: connections, clients, models. None without a
        lifespan.

        Annotate the context with its type, `ctx: Context[State]`: type checkers take your word for it.
        """
        return self._state  # type: ignore[return-value]  # None only where the app has no lifespan

    @property
    def tick(self) -> datetime | None:
        """The time of the schedule's tick that enqueued the job, in UTC, not the time it runs; None without a
        schedule."""
        found = tick_of(self.job_id)
        return None if found is None else found[1]

    @property
    def group_id(self) -> str | None:
        """The id of the group that the job is a member of."""
        rules = self._lease.job.rules
        return None if rules is None else rules.group

    @property
    def group(self) -> OwnGroup:
        """The group that the job is a member of: its progress, and more members with the commit."""
        group_id = self.group_id
        if group_id is None:
            raise Invalid(f"job {self.job_id!r} is not a member of a group: look at ctx.group_id first")
        return OwnGroup(self._store, group_id, self.open_commit)

    @property
    def worker(self) -> str:
        """The id of the worker that runs the job."""
        return self._lease.worker

    @property
    def attempt(self) -> int:
        """The number of times the job has been claimed, including this one."""
        return self._lease.attempt

    @property
    def retries(self) -> int:
        """The number of times the job has failed before."""
        return self._lease.retries

    @property
    def retries_left(self) -> int:
        """The number of times the job is still retried if it fails: 0 in the last attempt."""
        return max(0, self._lease.terms.max_retries - self._lease.retries)

    @property
    def expirations(self) -> int:
        """The number of earlier runs that started and never reported: their worker died, or lost the lease (F4)."""
        return self._lease.expirations

    @property
    def fence(self) -> int:
        """A number that rises with every claim in the store: receivers can refuse a lower one."""
        return self._lease.fence

    @property
    def token(self) -> str:
        """Proves that the lease is this run's: for `leasemill.commit(job_id, token)` in SQL. Keep it out of logs."""
        return self._lease.token

    @property
    def idempotency_key(self) -> str:
        """The same in every run of this job: pass it to other systems, so that they recognise a repeat."""
        return self._lease.job.id

    @property
    def enqueued_at(self) -> datetime:
        """The time at which the job was enqueued, in UTC."""
        return datetime.fromtimestamp(self._lease.created_at / 1_000_000, UTC)

    @property
    def deadline(self) -> datetime:
        """The time at which the handler times out (the `timeout` of the job); the lease is extended until then."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds_left)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline; negative when it has passed."""
        return self.timeout_at - time.monotonic()

    @property
    def is_committed(self) -> bool:
        """The commit of this run has been sent: the job can only succeed, or has been lost to another worker."""
        return self.commit_sent is not None

    @property
    def has_committed_without_result(self) -> bool:
        """The commit of this run has been sent, and `tx.set_result` was not called in it."""
        return self.commit_sent is not None and self.commit_sent.result is None

    def is_final(self, error: BaseException) -> bool:
        """Return True if the job fails permanently if its handler raises this: no retry is left, or this error is not
        retried."""
        if self.is_committed or self.lost.is_set() or isinstance(error, Release | Throttled):
            return False
        if isinstance(error, Fail) or self.retries_left == 0:
            return True
        return not isinstance(error, RetryAfter) and not self._job.retry.allows(error)

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines carry the job, its kind, the attempt and the worker."""
        if self._logger is None:
            bound = job_fields(self.job_id, self.kind, self.attempt, self.worker, self._lease.job.headers)
            self._logger = JobLogger(logging.getLogger("leasemill.job"), bound)
        return self._logger

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report the progress of this run. Shown with the worker, safe to lose, cheap to call often."""
        self.latest_progress = Progress(
            _number(done), None if total is None else _number(total), str(note)[:NOTE_LENGTH]
        )
        if self.on_progress is not None:
            self.on_progress()

    @overload
    def commit(self) -> Boundary[Transaction, AsyncTransaction]: ...
    @overload
    def commit(self, session: object) -> Boundary[Gathered, Gathered]: ...
    def commit(self, session: object | None = None) -> Boundary[Any, Any]:
        """The commit boundary: `with ctx.commit() as tx` in a thread, `async with ctx.commit() as tx` on the loop.

        Leaving the block writes one record, once per job: the job took effect, with its follow-up jobs and its result;
        on PostgreSQL with what `tx.execute` wrote. Raises LeaseLost if the job is no longer this handler's (`lost` is
        set, or the store refuses it): then nothing has happened, and the handler should stop.

        `session`: a connection or session of your own, to the store's database. What you write with it is part of the
        commit: leaving the block flushes and commits it, an error rolls it back.
        """
        if self.commit_sent is not None:
            raise Invalid(f"job {self.job_id!r} has committed in this run already; one commit holds everything")
        if session is None:
            block = self._store.block(self._lease, self.seconds_left)
            return Boundary(self, self._lease, self._job, self._store, block, (Transaction, AsyncTransaction))
        block = self._store.joined_block(self._lease, session)
        return Boundary(self, self._lease, self._job, self._store, block, (Gathered, Gathered))

    def once(self, connection: effects.DriverConnection, effect: str | None = None) -> effects.Once:
        """`with ctx.once(connection) as first`: apply an effect once per job, in a database that is not the store's.

        Leaving the block commits what it wrote, with a guard row; what a second run writes is rolled back. Name each of
        several effects. Raises LeaseLost if the job is known to be no longer this handler's.
        """
        if self._applied is None:
            self._applied = set()
        return effects.Once(connection, self.job_id, effect or self.kind, self.fence, self._check_held, self._applied)

    def http_headers(self, effect: str | None = None) -> dict[str, str]:
        """Idempotency-Key, the same in every run, and Leasemill-Fence, which rises. Name each of several calls."""
        return effects.http_headers(self.job_id, effect, self.fence)

    def _check_held(self) -> None:
        if self.lost.is_set():
            raise LeaseLost(self.job_id, "once", self.lost.reason or NOT_EXTENDED, self.attempt, self.attempt)


def _number(given: float) -> float:
    """A whole number stays one; anything else that counts as a number, of a library for example, becomes a float."""
    return int(given) if isinstance(given, int) else float(given)
