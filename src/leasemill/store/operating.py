"""What an operator can do to any store: recorded with who did it and why, each with a twin for async code.

Nothing here decides anything: the kernel does, and an operation that takes many commands is repeated if it is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from leasemill.kernel import commands as c
from leasemill.kernel.model import LimitTerms, Order, Policy, WorkerOrder
from leasemill.store.cancelling import acancelled, cancelled
from leasemill.store.orders import ordered_instance
from leasemill.store.presence import Presence
from leasemill.store.reading import StoreReadings


class StoreOperations(StoreReadings):
    """A store, as far as it is read and operated."""

    presence: Presence
    """Where workers publish their records."""

    def cancel(self, job_ids: Sequence[str], *, by: str, reason: str) -> list[c.CancelOutcome]:
        """End jobs for good; handlers that run are stopped. What has taken effect stays as it is (O1)."""
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
        """What a worker does when it starts: record the numbers that its code has."""
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
        """What retention does: forget successes that ended before a time, and the oldest beyond `keep` (O7)."""
        return self.run(c.Prune(before, keep, limit))

    async def aprune(self, before: int, *, keep: int, limit: int = 1_000) -> int:
        """`prune` in async code."""
        return await self.arun(c.Prune(before, keep, limit))


def _declaration(limits: Mapping[str, LimitTerms], by: str) -> c.DeclareLimits:
    return c.DeclareLimits([c.DeclaredLimit(name, terms) for name, terms in limits.items()], by)
