"""What an operator can do to any store: recorded with who did it and why, each with a twin for async code.

Nothing here decides anything: the kernel does. An operation that takes many commands is repeated if it is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from leasemill.kernel import commands as c
from leasemill.kernel.model import LimitTerms, Order, Policy, WorkerOrder
from leasemill.store.presence import Presence
from leasemill.store.readings import StoreReadings
from leasemill.store.worker_records import ordered_instance

PAGE: Final = 1_000
"""So many members of a group are cancelled by one command."""

AnswerT = TypeVar("AnswerT")
CommandSteps = Generator[c.Command[Any], Any, None]
"""Commands to run, in order; their answers are sent back."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""A long operation calls it now and then with how much is done and of how much; the caller shows it, or not."""


class CommandRunner(Protocol):
    """A store that runs commands; it need not be open to waiting or reading."""

    def run(self, command: c.Command[AnswerT]) -> AnswerT: ...

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT: ...


class StoreOperations(StoreReadings):
    """The readings and the operations of a store."""

    presence: Presence
    """The place where workers publish their records."""

    def cancel(self, job_ids: Sequence[str], *, by: str, reason: str) -> list[c.CancelOutcome]:
        """End jobs permanently; handlers that run are stopped. What has taken effect stays as it is (O1)."""
        return self.run(c.Cancel(job_ids, by, reason))

    async def acancel(self, job_ids: Sequence[str], *, by: str, reason: str) -> list[c.CancelOutcome]:
        """`cancel` in async code."""
        return await self.arun(c.Cancel(job_ids, by, reason))

    def cancel_group(self, group_id: str, *, by: str, reason: str) -> list[str]:
        """Cancel a group with the groups in it; returns the ids of the jobs that were cancelled."""
        return [job_id for operated in cancelled(self, group_id, by, reason) for job_id in operated.job_ids]

    async def acancel_group(self, group_id: str, *, by: str, reason: str) -> list[str]:
        """`cancel_group` in async code."""
        return [job_id async for operated in acancelled(self, group_id, by, reason) for job_id in operated.job_ids]

    def redrive(
        self,
        where: c.JobFilter,
        *,
        by: str,
        reason: str,
        limit: int = 1_000,
        after: int = 0,
        include_cancelled: bool = False,
    ) -> c.Operated:
        """Run failed and dead jobs again, with all their retries (O2). `after` of what is returned continues it."""
        return self.run(c.Redrive(where, by, reason, limit, after, include_cancelled))

    async def aredrive(
        self,
        where: c.JobFilter,
        *,
        by: str,
        reason: str,
        limit: int = 1_000,
        after: int = 0,
        include_cancelled: bool = False,
    ) -> c.Operated:
        """`redrive` in async code."""
        return await self.arun(c.Redrive(where, by, reason, limit, after, include_cancelled))

    def purge(self, where: c.JobFilter, *, by: str, reason: str, limit: int = 1_000, after: int = 0) -> c.Operated:
        """Delete jobs that have ended (O5). `after` of what is returned continues it."""
        return self.run(c.Purge(where, by, reason, limit, after))

    async def apurge(
        self, where: c.JobFilter, *, by: str, reason: str, limit: int = 1_000, after: int = 0
    ) -> c.Operated:
        """`purge` in async code."""
        return await self.arun(c.Purge(where, by, reason, limit, after))

    def pause(self, queue: str, *, by: str, reason: str) -> None:
        """Let no job of this queue be claimed until it is resumed (O3)."""
        self.run(c.Pause(queue, by, reason))

    async def apause(self, queue: str, *, by: str, reason: str) -> None:
        """`pause` in async code."""
        await self.arun(c.Pause(queue, by, reason))

    def resume(self, queue: str, *, by: str, reason: str) -> None:
        """Let jobs of this queue be claimed again."""
        self.run(c.Resume(queue, by, reason))

    async def aresume(self, queue: str, *, by: str, reason: str) -> None:
        """`resume` in async code."""
        await self.arun(c.Resume(queue, by, reason))

    def set_policy(self, queue: str, policy: Policy, *, by: str, reason: str) -> None:
        """Set a queue's policy, for the claims that follow (O4)."""
        self.run(c.SetPolicy(queue, policy, by, reason))

    async def aset_policy(self, queue: str, policy: Policy, *, by: str, reason: str) -> None:
        """`set_policy` in async code."""
        await self.arun(c.SetPolicy(queue, policy, by, reason))

    def set_limit(self, name: str, terms: LimitTerms, *, by: str, reason: str) -> None:
        """Set a limit's numbers; they override those the code declares until they are cleared (T6)."""
        self.run(c.SetLimit(name, terms, by, reason))

    async def aset_limit(self, name: str, terms: LimitTerms, *, by: str, reason: str) -> None:
        """`set_limit` in async code."""
        await self.arun(c.SetLimit(name, terms, by, reason))

    def clear_limit(self, name: str, *, by: str, reason: str) -> None:
        """Remove what `set_limit` set: the numbers that the code declares apply again."""
        self.run(c.ClearLimit(name, by, reason))

    async def aclear_limit(self, name: str, *, by: str, reason: str) -> None:
        """`clear_limit` in async code."""
        await self.arun(c.ClearLimit(name, by, reason))

    def declare_limits(self, limits: Mapping[str, LimitTerms], *, by: str) -> None:
        """Record the numbers that a worker's code declares. Workers call it when they start."""
        self.run(_declaration(limits, by))

    async def adeclare_limits(self, limits: Mapping[str, LimitTerms], *, by: str) -> None:
        """`declare_limits` in async code."""
        await self.arun(_declaration(limits, by))

    def order_worker(self, worker_id: str, order: Order, *, by: str, reason: str) -> WorkerOrder | None:
        """Ask the process that runs as this worker now to be quiet, to resume or to stop; refused if there is none."""
        instance = ordered_instance(self.presence, worker_id)
        return self.run(c.OrderWorker(worker_id, instance, order, by, reason))

    async def aorder_worker(self, worker_id: str, order: Order, *, by: str, reason: str) -> WorkerOrder | None:
        """`order_worker` in async code."""
        instance = await asyncio.to_thread(ordered_instance, self.presence, worker_id)
        return await self.arun(c.OrderWorker(worker_id, instance, order, by, reason))

    def prune(self, before: int, *, keep: int, limit: int = 1_000) -> int:
        """Delete successes that ended before a time, and the oldest beyond `keep` (O7). Retention calls it."""
        return self.run(c.Prune(before, keep, limit))

    async def aprune(self, before: int, *, keep: int, limit: int = 1_000) -> int:
        """`prune` in async code."""
        return await self.arun(c.Prune(before, keep, limit))


def _declaration(limits: Mapping[str, LimitTerms], by: str) -> c.DeclareLimits:
    return c.DeclareLimits([c.DeclaredLimit(name, terms) for name, terms in limits.items()], by)


# A group with the groups in it (B3) --------------------------------------------------------------------------------
#
# It is cancelled page by page. The group is sealed first, so that no more groups are created in it; then come the
# groups that are there, and at last what their ends have enqueued in it. A cancellation that was cut off is repeated.


def cancelled(store: CommandRunner, group_id: str, by: str, reason: str) -> Iterator[c.Operated]:
    """Yield what each command cancelled."""
    steps, answer = _steps(group_id, by, reason), None
    while (command := _next(steps, answer)) is not None:
        answer = store.run(command)
        if isinstance(answer, c.Operated):
            yield answer


async def acancelled(store: CommandRunner, group_id: str, by: str, reason: str) -> AsyncIterator[c.Operated]:
    """`cancelled` in async code."""
    steps, answer = _steps(group_id, by, reason), None
    while (command := _next(steps, answer)) is not None:
        answer = await store.arun(command)
        if isinstance(answer, c.Operated):
            yield answer


def _next(steps: CommandSteps, answer: Any) -> c.Command[Any] | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _steps(group_id: str, by: str, reason: str) -> CommandSteps:
    yield from _members(group_id, by, reason)
    last = ""
    while nested := (yield c.ListGroups(PAGE, open_only=True, after=last, parent=group_id)):
        for view in nested:
            yield from _steps(view.id, by, reason)
        last = nested[-1].id
    if last:
        yield from _members(group_id, by, reason)  # B7: the callbacks of those groups


def _members(group_id: str, by: str, reason: str) -> CommandSteps:
    after: int | None = 0
    while after is not None:
        operated: c.Operated = yield c.CancelGroup(group_id, by, reason, PAGE, after)
        after = operated.after


def not_shown(_done: int, _total: int) -> None:
    """The caller shows no progress."""
