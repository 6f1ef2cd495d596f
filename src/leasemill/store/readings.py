"""What can be read of any store: each reading is one command, bounded by a limit, with a twin for async code.

Nothing here changes a store. A store that reads something in a shorter way overrides the method, never the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from leasemill.kernel import commands as c
from leasemill.kernel.model import Action, Job, JobState, WorkerOrder

AnswerT = TypeVar("AnswerT")


class Pulse(NamedTuple):
    """Numbers that can be read often, however many jobs there are: those of `Totals`, and how many are leased."""

    seq: int
    fence: int
    leased: int


class StoreReadings(ABC):
    """The readings of a store."""

    @abstractmethod
    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        """Run a command and return its answer once that is durable."""

    @abstractmethod
    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        """Do the same without blocking the event loop."""

    def job(self, job_id: str) -> Job | None:
        """Return one job with its attempts; None if it is unknown or was deleted."""
        return self.run(c.GetJob(job_id))

    async def ajob(self, job_id: str) -> Job | None:
        """`job` in async code."""
        return await self.arun(c.GetJob(job_id))

    def jobs(
        self, where: c.JobFilter | None = None, *, limit: int = 100, after: int = 0, newest_first: bool = False
    ) -> c.JobPage:
        """List jobs in the order in which they were enqueued; `after` is the `after` of the previous page."""
        return self.run(c.ListJobs(where or c.JobFilter(), limit, after, newest_first))

    async def ajobs(
        self, where: c.JobFilter | None = None, *, limit: int = 100, after: int = 0, newest_first: bool = False
    ) -> c.JobPage:
        """`jobs` in async code."""
        return await self.arun(c.ListJobs(where or c.JobFilter(), limit, after, newest_first))

    def leases(self, *, worker: str | None = None, limit: int = 100, after: int = 0) -> list[c.LeaseView]:
        """List leases in the order in which they were granted; `after` is the last fence of the previous page."""
        return self.run(c.ListLeases(limit, after, worker))

    async def aleases(self, *, worker: str | None = None, limit: int = 100, after: int = 0) -> list[c.LeaseView]:
        """`leases` in async code."""
        return await self.arun(c.ListLeases(limit, after, worker))

    def key(self, queue: str, key: str) -> c.KeyView | None:
        """Return which job holds a unique key of a queue; None if no job does."""
        return self.run(c.GetKey(queue, key))

    async def akey(self, queue: str, key: str) -> c.KeyView | None:
        """`key` in async code."""
        return await self.arun(c.GetKey(queue, key))

    def queues(self, *, limit: int = 100, after: str = "") -> list[c.QueueView]:
        """List queues by name; `after` is the last name of the previous page."""
        return self.run(c.ListQueues(limit, after))

    async def aqueues(self, *, limit: int = 100, after: str = "") -> list[c.QueueView]:
        """`queues` in async code."""
        return await self.arun(c.ListQueues(limit, after))

    def lane(self, queue: str, lane: str) -> c.LaneView | None:
        """Return one lane with its head; None if it is unknown."""
        return self.run(c.GetLane(queue, lane))

    async def alane(self, queue: str, lane: str) -> c.LaneView | None:
        """`lane` in async code."""
        return await self.arun(c.GetLane(queue, lane))

    def lanes(self, queue: str, *, blocked_only: bool = False, limit: int = 100, after: int = 0) -> c.LanePage:
        """List lanes with work, in the order of their heads; `after` is the `after` of the previous page."""
        return self.run(c.ListLanes(queue, limit, blocked_only, after))

    async def alanes(self, queue: str, *, blocked_only: bool = False, limit: int = 100, after: int = 0) -> c.LanePage:
        """`lanes` in async code."""
        return await self.arun(c.ListLanes(queue, limit, blocked_only, after))

    def group(self, group_id: str) -> c.GroupView | None:
        """Return one group with its counts; None if it is unknown or was deleted."""
        return self.run(c.GetGroup(group_id))

    async def agroup(self, group_id: str) -> c.GroupView | None:
        """`group` in async code."""
        return await self.arun(c.GetGroup(group_id))

    def groups(
        self, *, open_only: bool = False, limit: int = 100, after: str = "", parent: str | None = None
    ) -> list[c.GroupView]:
        """List groups by id, or those in a parent; with `open_only` those that are not over."""
        return self.run(c.ListGroups(limit, open_only, after, parent))

    async def agroups(
        self, *, open_only: bool = False, limit: int = 100, after: str = "", parent: str | None = None
    ) -> list[c.GroupView]:
        """`groups` in async code."""
        return await self.arun(c.ListGroups(limit, open_only, after, parent))

    def limit(self, name: str, *, key: str | None = None, limit: int = 100, after: str = "") -> c.LimitView | None:
        """Return one limit with the keys in use, or with the one key given; None if it is unknown."""
        return self.run(c.GetLimit(name, limit, after, key))

    async def alimit(
        self, name: str, *, key: str | None = None, limit: int = 100, after: str = ""
    ) -> c.LimitView | None:
        """`limit` in async code."""
        return await self.arun(c.GetLimit(name, limit, after, key))

    def limits(self, *, limit: int = 100, after: str = "") -> list[c.LimitView]:
        """List limits by name, without their keys; `after` is the last name of the previous page."""
        return self.run(c.ListLimits(limit, after))

    async def alimits(self, *, limit: int = 100, after: str = "") -> list[c.LimitView]:
        """`limits` in async code."""
        return await self.arun(c.ListLimits(limit, after))

    def actions(self, *, limit: int = 100) -> list[Action]:
        """List what operators did, the latest first."""
        return self.run(c.ListActions(limit))

    async def aactions(self, *, limit: int = 100) -> list[Action]:
        """`actions` in async code."""
        return await self.arun(c.ListActions(limit))

    def order(self, instance: str) -> WorkerOrder | None:
        """Return the latest order to one process of a worker."""
        return self.run(c.GetOrder(instance))

    async def aorder(self, instance: str) -> WorkerOrder | None:
        """`order` in async code."""
        return await self.arun(c.GetOrder(instance))

    def totals(self) -> c.Totals:
        """Count the jobs in each state, over all queues."""
        return self.run(c.GetTotals())

    async def atotals(self) -> c.Totals:
        """`totals` in async code."""
        return await self.arun(c.GetTotals())

    def time(self) -> int:
        """Return the time by the store's clock, by which it records all times."""
        return self.run(c.GetTime())

    async def atime(self) -> int:
        """`time` in async code."""
        return await self.arun(c.GetTime())

    def due_in(self, queues: Sequence[str]) -> int | None:
        """Return in how many microseconds the next job of these queues is due: 0 for now, None if none waits."""
        return self.run(c.DueIn(queues))

    async def adue_in(self, queues: Sequence[str]) -> int | None:
        """`due_in` in async code."""
        return await self.arun(c.DueIn(queues))

    def pulse(self) -> Pulse:
        """Return the numbers that the dashboard reads often."""
        totals = self.totals()
        return Pulse(totals.seq, totals.fence, totals.counts[JobState.LEASED])
