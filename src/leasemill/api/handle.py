"""`JobHandle`: a job in the store, its state and its result; and the results of a group's members.

The newest members of a group are read first, and no further than its last member: the callback of a group, which asks
for the results as soon as the members have ended, does not read through all jobs that are kept.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from leasemill.api.arguments import Arguments
from leasemill.api.command_steps import Steps, Stepwise, ask
from leasemill.api.json_types import Unfit
from leasemill.api.policy import Duration, microseconds
from leasemill.errors import JobCancelled, JobDead, JobFailed, NoResult, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, SECOND, Job, JobState
from leasemill.kernel.transitions.groups import then_id
from leasemill.store.base import Store
from leasemill.store.worker_records import reported_run

R_co = TypeVar("R_co", covariant=True)

BY_CODE: Final = "cancelled by the program"
"""The reason on record where none is given."""
LONGEST_WAIT_S: Final = 60.0
"""A job is read again after this time, even if nothing has woken its waiter."""


class JobProgress(Struct, frozen=True):
    """The progress of a running job, as its handler reported it last."""

    done: float
    total: float | None
    note: str
    attempt: int
    worker: str
    age_s: float
    """The time since the worker published it."""


class JobHandle(Generic[R_co]):
    """A job in the store: its state and its result. `enqueue` and `app.handle(job_id)` return one.

    The methods that begin with `a`, and `await_end`, are the same in async code.
    """

    __slots__ = ("_arguments", "_store", "id", "outcome")

    def __init__(
        self,
        store: Store,
        job_id: str,
        arguments: Arguments | None,
        outcome: c.EnqueueOutcome | None = None,
    ) -> None:
        self.id = job_id
        self.outcome = outcome
        self._store = store
        self._arguments = arguments

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    @property
    def is_duplicate(self) -> bool:
        """True if no job was enqueued: the id exists with the same content (E2), or another job holds the unique
        key (U1), and this is its handle."""
        return isinstance(self.outcome, c.Duplicate | c.Merged)

    def record(self) -> Job:
        """Everything the store knows about the job: its state, every execution, every refused report."""
        return self._known(self._store.job(self.id))

    async def arecord(self) -> Job:
        """`record` in async code."""
        return self._known(await self._store.ajob(self.id))

    def status(self) -> JobState:
        """READY, LEASED, SUCCEEDED, FAILED, DEAD or CANCELLED."""
        return self.record().state

    async def astatus(self) -> JobState:
        """`status` in async code."""
        return (await self.arecord()).state

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job has ended, and return its result.

        Raises JobFailed, JobDead, JobCancelled, or TimeoutError if it has not ended in time.
        """
        return self.result_of(self.ended_by(Deadline(f"job {self.id!r}", timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 (the same call as `result`)
        """`result` in async code."""
        return self.result_of(await self.aended_by(Deadline(f"job {self.id!r}", timeout)))

    def wait(self, timeout: Duration | None = None) -> JobState:
        """Wait until the job has ended, and return its state; TimeoutError after `timeout`."""
        return self.ended_by(Deadline(f"job {self.id!r}", timeout)).state

    async def await_end(self, timeout: Duration | None = None) -> JobState:  # noqa: ASYNC109 (as `wait`)
        """`wait` in async code."""
        return (await self.aended_by(Deadline(f"job {self.id!r}", timeout))).state

    def cancel(self, reason: str = BY_CODE, *, by: str = "application") -> bool:
        """End the job permanently, and record who did it and why. If it is running, its handler is stopped.

        False: it has taken effect (it succeeded, or has committed), and is unchanged.
        """
        return self._is_cancelled(self._store.run(c.Cancel([self.id], by, reason))[0])

    async def acancel(self, reason: str = BY_CODE, *, by: str = "application") -> bool:
        """`cancel` in async code."""
        return self._is_cancelled((await self._store.arun(c.Cancel([self.id], by, reason)))[0])

    def _is_cancelled(self, outcome: c.CancelOutcome) -> bool:
        if isinstance(outcome, c.Missing):
            self._known(None)
        return isinstance(outcome, c.Cancelled) and outcome.state is JobState.CANCELLED

    def progress(self) -> JobProgress | None:
        """The progress that the running handler reported with `ctx.progress(...)`, as its worker published it: every 2
        s or so.

        None: the job is not running, or nothing was reported or published yet.
        """
        return read_progress_of(self._store, self.record())

    async def aprogress(self) -> JobProgress | None:
        """`progress` in async code."""
        return await aread_progress_of(self._store, await self.arecord())

    def ended_by(self, deadline: Deadline) -> Job:
        """The job's record when it has ended."""
        job = self.record()
        if has_ended(job):
            return job
        watch = self._store.watch_end(self.id)
        try:
            while not has_ended(job := self.record()):
                watch.wait(deadline.left_s(job.state))
            return job
        finally:
            watch.close()

    async def aended_by(self, deadline: Deadline) -> Job:
        """`ended_by` in async code."""
        job = await self.arecord()
        if has_ended(job):
            return job
        watch = self._store.watch_end(self.id)
        try:
            while not has_ended(job := await self.arecord()):
                await watch.wait_async(deadline.left_s(job.state))
            return job
        finally:
            watch.close()

    def _known(self, job: Job | None) -> Job:
        if job is None:
            raise NotFound(
                f"there is no job {self.id!r}: it was purged or pruned, or never enqueued, or its transaction has not "
                "committed yet"
            )
        return job

    def result_of(self, job: Job) -> R_co:
        """The result of the job, whose record this is; raises if it has ended otherwise."""
        if job.state is JobState.FAILED:
            raise JobFailed(self.id, job.executions[-1].error or "no error was reported")
        if job.state is JobState.DEAD:
            raise JobDead(self.id, f"quarantined: {job.expirations} of its runs ended with their worker or their lease")
        if job.state is JobState.CANCELLED:
            raise JobCancelled(self.id, _why_cancelled(job))
        if self._arguments is None:
            content: R_co = msgspec.json.decode(job.result or b"null")
            return content
        try:
            result: R_co = self._arguments.decode_result(job.result)
        except Unfit as error:
            if job.result is None:
                raise NoResult(
                    self.id, "succeeded without a result: its commit set none (tx.set_result), and what a handler "
                    "returns after its commit is dropped"
                ) from None  # fmt: skip
            raise NoResult(self.id, f"has a result that does not fit the declared type: {error}") from None
        return result


def read_progress_of(store: Store, job: Job) -> JobProgress | None:
    """The progress of the run that the record shows."""
    if job.state is not JobState.LEASED:
        return None
    found = reported_run(store.presence, job.spec.id, job.attempt)
    if found is None or found.job.done is None:
        return None
    return JobProgress(
        found.job.done, found.job.total, found.job.note, found.job.attempt, found.worker, max(0.0, found.age_s)
    )


async def aread_progress_of(store: Store, job: Job) -> JobProgress | None:
    """`read_progress_of` in async code: workers' records are read in a thread."""
    return None if job.state is not JobState.LEASED else await asyncio.to_thread(read_progress_of, store, job)


class Deadline:
    """The latest time until which a caller waits for an end."""

    def __init__(self, what: str, timeout: Duration | None) -> None:
        self._what = what
        self._at_s = math.inf if timeout is None else time.monotonic() + microseconds("timeout", timeout) / SECOND

    def left_s(self, state: str) -> float:
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{self._what} has not ended in time; it is {state}")
        return min(left_s, LONGEST_WAIT_S)


def has_ended(job: Job) -> bool:
    return job.state in ENDED_STATES


def _why_cancelled(job: Job) -> str:
    cancellation = job.cancellation
    return "by an operator" if cancellation is None else f"by {cancellation.by}: {cancellation.reason}"


PAGE: Final = 1_000


@Stepwise
def read_results(store: Store, group_id: str) -> Steps[list[Any]]:
    """The results of a group that is over, in the order in which its members were enqueued."""
    return _results(store, (yield from _members(group_id)))


def _members(group_id: str) -> Steps[list[Job]]:
    group = yield from ask(c.GetGroup(group_id))
    count = 0 if group is None else group.total
    last = ""
    while nested := (yield from ask(c.ListGroups(PAGE, after=last, parent=group_id))):
        count -= len(nested)  # B7: a group in it counts as a member, and is not a job
        last = nested[-1].id
    found: dict[str, Job] = {}
    after: int | None = 0
    while after is not None and len(found) < count:
        page = yield from ask(c.ListJobs(c.JobFilter(group=group_id), PAGE, after, newest_first=True))
        found |= {job.spec.id: job for job in page.jobs}
        after = page.after
    if len(found) < count:
        raise NotFound(
            f"{count - len(found):,} of the {count:,} members of group {group_id!r} are no longer kept: read its "
            "results sooner, in its callback for example, or keep jobs longer (retain_for_s, retain_count in the URL)"
        )
    return list(found.values())


def _results(store: Store, members: list[Job]) -> list[Any]:
    """Return the results in order; a chain's is its last job's, at the position of its first. Raises for a failure."""
    position: dict[str, int] = {}
    for job in sorted(members, key=lambda job: job.seq):
        own = position.setdefault(job.spec.id, job.seq)
        if _continues(job):
            position[then_id(job.spec.id)] = own
    ordered = sorted(members, key=lambda job: (position[job.spec.id], job.seq))
    handles = [(JobHandle[Any](store, job.spec.id, None), job) for job in ordered]
    return [result for handle, job in handles for result in [handle.result_of(job)] if not _continues(job)]


def _continues(job: Job) -> bool:
    return job.spec.rules is not None and bool(job.spec.rules.chain)
