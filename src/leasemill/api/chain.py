"""`chain`: jobs in sequence, each enqueued by the success of the job before it, in the same fact (B6).

    chain(fetch.call(url), parse.call(PREVIOUS), store.call(url, PREVIOUS)).enqueue()

Only the first job is enqueued; it carries the calls of the others, and nothing polls. Where PREVIOUS stands as an
argument, the job receives the result of the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import replace

from leasemill.api.call import Call, checked_call
from leasemill.api.enqueue_batch import aenqueue_all, enqueue_all
from leasemill.api.handle import (
    BY_CODE,
    Deadline,
    JobHandle,
    JobProgress,
    aread_progress_of,
    has_ended,
    read_progress_of,
)
from leasemill.api.policy import Duration
from leasemill.errors import Invalid, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, Job, JobState, Rules
from leasemill.kernel.transitions.groups import then_id
from leasemill.store.base import Store

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


def chain(*calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Chain[R]:
    """Calls that run in sequence; the result is that of the last.

    A call with `PREVIOUS` as an argument receives the result of the one before it. Each call keeps its options, but
    only the first can have a `job_id` or `run_at`; a `delay` counts from the end of the job before. A job that fails
    permanently ends the chain there; if it is redriven, the chain continues.
    """
    steps = [step for call in calls for step in (call.steps if isinstance(call, Chain) else (checked_call(call),))]
    if not steps:
        raise Invalid("a chain needs at least one call: write chain(first.call(...), second.call(...))")
    return Chain(steps)


class Chain(Call[R_co]):
    """Calls that run one after the other. It can be enqueued wherever a call can: alone, in a group, in a commit."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Call[Any]]) -> None:
        first, *others = steps
        for before, after in pairwise(steps):
            if after.result_name is not None:
                after.arguments.check_takes_result_of(before.arguments, after.result_name)
        for call in others[:-1]:
            if call.spec.rules is not None and call.spec.rules.unique is not None:
                raise Invalid(
                    f"{call.spec.kind} is unique, and others follow it in this chain: merged with another job, it "
                    "would end the chain there. Make it the first or the last, or a kind that is not unique"
                )
        rules = first.spec.rules or Rules()
        chained = tuple(_inheriting(first, call.template("a later job of a chain")) for call in others)
        super().__init__(
            first.app,
            replace(first.spec, rules=replace(rules, chain=chained)) if chained else first.spec,
            steps[-1].arguments,
            has_drawn_id=first.has_drawn_id,
            result_name=first.result_name,
        )
        self.steps = tuple(steps)

    def enqueue(self) -> ChainHandle[R_co]:
        """Enqueue the chain; it is durable when this returns."""
        (handle,) = enqueue_all(self.app, [self])
        assert isinstance(handle, ChainHandle)
        return handle

    async def aenqueue(self) -> ChainHandle[R_co]:
        """`enqueue` in async code."""
        (handle,) = await aenqueue_all(self.app, [self])
        assert isinstance(handle, ChainHandle)
        return handle

    def handle(self, store: Store, job_id: str, outcome: c.EnqueueOutcome | None = None) -> ChainHandle[R_co]:
        ids = [job_id]
        for _ in self.steps[1:]:
            ids.append(then_id(ids[-1]))
        first, *others = (JobHandle[Any](store, one, step.arguments) for one, step in zip(ids, self.steps, strict=True))
        first.outcome = outcome
        return ChainHandle(store, (first, *others), self.arguments, outcome)


def _inheriting(first: Call[Any], template: ChainedJob) -> ChainedJob:
    """The headers of the first job travel with all of them, and are not content there."""
    return replace(template, headers=None) if template.headers == first.spec.headers else template


class ChainHandle(JobHandle[R_co]):
    """The last job of a chain, which does not exist until those before it have succeeded; `jobs` has all of them."""

    __slots__ = ("jobs",)

    def __init__(
        self,
        store: Store,
        jobs: tuple[JobHandle[Any], ...],
        arguments: Any,
        outcome: c.EnqueueOutcome | None,
    ) -> None:
        super().__init__(store, jobs[-1].id, arguments, outcome)
        self.jobs = jobs

    def __repr__(self) -> str:
        return f"<chain of {len(self.jobs)} jobs, first {self.jobs[0].id}>"

    def status(self) -> JobState:
        """READY between two jobs, SUCCEEDED when the last job has, otherwise the state of the latest job."""
        return self._state(*self._latest())

    async def astatus(self) -> JobState:
        """`status` in async code."""
        return self._state(*await self._alatest())

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the chain has ended, and return the result of its last job.

        Raises JobFailed, JobDead or JobCancelled of the job it ended at, or TimeoutError if it has not ended in time.
        """
        return self._end_at(*self._chain_ended_by(Deadline(f"job {self.id!r}", timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 (the same call as `result`)
        """`result` in async code."""
        return self._end_at(*await self._achain_ended_by(Deadline(f"job {self.id!r}", timeout)))

    def wait(self, timeout: Duration | None = None) -> JobState:
        """Wait until the chain has ended, and return the state of the job it ended at."""
        return self._chain_ended_by(Deadline(f"job {self.id!r}", timeout))[1].state

    async def await_end(self, timeout: Duration | None = None) -> JobState:  # noqa: ASYNC109 (as `wait`)
        """`wait` in async code."""
        return (await self._achain_ended_by(Deadline(f"job {self.id!r}", timeout)))[1].state

    def _chain_ended_by(self, deadline: Deadline) -> tuple[int, Job]:
        """The place and the record of the job that the chain ended at."""
        place = self._latest()[0]
        while True:
            job = self.jobs[place].ended_by(deadline)
            if self._ends_with(place, job):
                return place, job
            place += 1

    async def _achain_ended_by(self, deadline: Deadline) -> tuple[int, Job]:
        place = (await self._alatest())[0]
        while True:
            job = await self.jobs[place].aended_by(deadline)
            if self._ends_with(place, job):
                return place, job
            place += 1

    def cancel(self, reason: str = BY_CODE, *, by: str = "application") -> bool:
        """End the chain permanently at its current job: the jobs after it are not enqueued.

        False: its last job has taken effect.
        """
        place = self._latest()[0]
        while not self.jobs[place].cancel(reason, by=by):
            if place == len(self.jobs) - 1:
                return False
            place += 1  # it succeeded meanwhile, and enqueued the next in the same fact
        return True

    async def acancel(self, reason: str = BY_CODE, *, by: str = "application") -> bool:
        """`cancel` in async code."""
        place = (await self._alatest())[0]
        while not await self.jobs[place].acancel(reason, by=by):
            if place == len(self.jobs) - 1:
                return False
            place += 1
        return True

    def progress(self) -> JobProgress | None:
        """The progress of the chain's current job."""
        return read_progress_of(self._store, self._latest()[1])

    async def aprogress(self) -> JobProgress | None:
        """`progress` in async code."""
        return await aread_progress_of(self._store, (await self._alatest())[1])

    def _latest(self) -> tuple[int, Job]:
        """The place and the record of the latest job: those before it may be forgotten, those behind it are not yet."""
        for place, handle in reversed(list(enumerate(self.jobs))):
            job = self._store.job(handle.id)
            if job is not None:
                return place, job
        raise self._unknown()

    async def _alatest(self) -> tuple[int, Job]:
        for place, handle in reversed(list(enumerate(self.jobs))):
            job = await self._store.ajob(handle.id)
            if job is not None:
                return place, job
        raise self._unknown()

    def _ends_with(self, place: int, job: Job) -> bool:
        return place == len(self.jobs) - 1 or job.state is not JobState.SUCCEEDED

    def _end_at(self, place: int, job: Job) -> R_co:
        result: R_co = self.jobs[place].result_of(job)
        return result

    def _state(self, place: int, job: Job) -> JobState:
        is_between = has_ended(job) and not self._ends_with(place, job)
        return JobState.READY if is_between else job.state

    def _known(self, job: Job | None) -> Job:
        if job is None:
            raise NotFound(
                f"there is no job {self.id!r} yet, or no longer, or it was merged with another that held its unique "
                "key: it is the last of a chain, and `jobs` has those before"
            )
        return job

    def _unknown(self) -> NotFound:
        return NotFound(
            f"there is no job {self.jobs[0].id!r}, nor one that follows it in its chain: they were purged or pruned, "
            "or never enqueued, or their transaction has not committed yet"
        )
