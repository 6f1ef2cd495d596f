"""A state that spills most of its jobs to disk: those that wait and nothing depends on, and those that have succeeded.

A job that is taken by its id is reloaded into memory, into every order it belongs to, so that the kernel may change it;
`spill_oldest`, between commands, spills what can go. The counts, and all other jobs, are in memory as ever. What must
never happen here: a job that is in memory and spilled, or neither. Nothing is locked here, because only the thread that
has the store's lock uses a state.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, ItemsView, Iterable, Sequence, ValuesView
from functools import partial
from itertools import accumulate, compress
from typing import Any, Final, TypeAlias

from msgspec import Raw

from leasemill.kernel.index.order import TimeOrder, is_claimable
from leasemill.kernel.model import Job, JobState
from leasemill.kernel.state import READY, SUCCEEDED, State, finished_at, is_finished
from leasemill.store.file.disk import File
from leasemill.store.file.spill.index import SpillIndex, decode_job, encode_job
from leasemill.store.file.spill.orders import FINISHED, WAITING, SpilledListing, SpilledOrder
from leasemill.store.file.spill.volumes import Volumes

LOGGER: Final = logging.getLogger("leasemill.wal")
KEPT_IN_MEMORY: Final = 8_000
"""The jobs of the latest enqueues and successes: most are looked at again soon."""
SPILLED_AT_ONCE: Final = 1_000
"""It takes some milliseconds, in which the process does nothing else."""

EVERY_FINISHED: Final = ("", SUCCEEDED, 0)  # of all queues and priorities
OrderName: TypeAlias = tuple[str, JobState, int]
"""Queue, state and priority of its jobs."""
LoadedEntries: TypeAlias = tuple["array[int]", "array[int]"]


class SpilledJobs(dict[str, Job]):
    """Jobs by id. The dictionary itself has those in memory."""

    __slots__ = ("_state",)

    def __init__(self, state: SpillingState) -> None:
        super().__init__()
        self._state = state

    def get(self, job_id: str, default: Any = None) -> Any:
        job = dict.get(self, job_id)
        if job is None and self._state.index.count:
            job = self._state.reload(job_id)
        return default if job is None else job

    def __missing__(self, job_id: str) -> Job:
        job = self._state.reload(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def __contains__(self, job_id: object) -> bool:
        index = self._state.index
        return dict.__contains__(self, job_id) or (index.count > 0 and index.holds(str(job_id)))

    def __len__(self) -> int:
        return super().__len__() + self._state.index.count

    def __setitem__(self, job_id: str, job: Job) -> None:
        dict.__setitem__(self, job_id, job)
        self._state.note(job)

    def values(self) -> ValuesView[Job]:  # type: ignore[override]
        """All of them, in memory from then on: for checks."""
        self._state.reload_all()
        return super().values()

    def items(self) -> ItemsView[str, Job]:  # type: ignore[override]
        self._state.reload_all()
        return super().items()


class FinishedOrder(SpilledOrder):
    """Succeeded jobs by the time they ended, for retention; each is noted as one to spill."""

    __slots__ = ("_note",)

    def __init__(self, index: SpillIndex, note: Callable[[Job], None]) -> None:
        super().__init__(is_finished, index, FINISHED, finished_at)
        self._note = note

    def push(self, at: int, key: int, item: Job, in_order: bool = True) -> None:
        super().push(at, key, item, in_order)
        self._note(item)


class SpillingState(State):
    """The kernel's state with a part of the jobs on disk. Close it when it is not used any more: it has files open.

    The kernel sees mappings and orders as in any state. Two of them do the work: `jobs`, whose lookups reload, and
    the orders, which read copies for a page or a claim and leave the jobs where they are. `is_spill_due`: enough jobs
    are noted; the owner calls `spill_oldest` when no command is being decided."""

    __slots__ = ("_is_without_room", "_loaded", "_noted", "_volumes", "index", "is_spill_due")

    def __init__(self, make_scratch: Callable[[], File]) -> None:
        super().__init__()
        self._volumes = Volumes(make_scratch)
        self._is_without_room = False
        self._loaded: dict[OrderName, LoadedEntries] = {}
        self.index = SpillIndex(self._volumes)
        self.is_spill_due = False
        self._noted: list[Job] = []
        self.jobs: dict[str, Job] = SpilledJobs(self)
        self.listing = SpilledListing(self.index)
        self.finished: TimeOrder[Job] = FinishedOrder(self.index, self.note)
        self.ready_order = partial(SpilledOrder, is_claimable, self.index, WAITING, _available_at)

    def close(self) -> None:
        self._volumes.close()

    def look(self, job_id: str) -> Job | None:
        """A job to be read; of a spilled one a copy."""
        return dict.get(self.jobs, job_id) or self.index.find(job_id)

    def _order(self, queue: str, state: JobState, priority: int) -> SpilledOrder:
        """The one order that a job which may be spilled is in."""
        if state is SUCCEEDED:
            order: TimeOrder[Job] | None = self.finished
        else:
            order = self.queues[queue].ready[priority]
        assert isinstance(order, SpilledOrder)
        return order

    # Back into memory

    def reload(self, job_id: str) -> Job | None:
        job = self.index.find(job_id)
        if job is None:
            return None
        self.index.remove(job)
        dict.__setitem__(self.jobs, job_id, job)
        self.listing.add(job)
        self._order(job.spec.queue, job.state, job.spec.priority).reload(_order_time(job), job)
        return job

    def reload_all(self) -> None:
        for number in list(self.index.chunk_numbers):
            for seq in list(self.index.seqs(number)):
                job = self.index.get(seq)
                assert job is not None
                self.reload(job.spec.id)

    def take_out(self, job: Job) -> None:
        """Forget a job. A spilled one is not reloaded for that: retention forgets thousands."""
        if dict.__contains__(self.jobs, job.spec.id):
            super().take_out(job)
            return
        self.index.remove(job)
        self._order(job.spec.queue, job.state, job.spec.priority).drop_spilled()
        job.seq = 0

    # Onto the disk

    def give_back(self, job: Job) -> None:
        self.note(job)
        if self.is_spill_due:
            self.spill_oldest()

    def note(self, job: Job) -> None:
        """Note a job that may be spilled later."""
        self._noted.append(job)
        if len(self._noted) >= KEPT_IN_MEMORY + SPILLED_AT_ONCE:
            self.is_spill_due = True

    def spill_oldest(self) -> None:
        """Spill the noted jobs that came or ended longest ago. Called between commands, never while one is decided."""
        self.is_spill_due = False
        count = max(0, len(self._noted) - KEPT_IN_MEMORY)
        oldest = self._noted[:count]
        del self._noted[:count]
        self._spill(oldest)

    def _spill(self, candidates: Iterable[Job]) -> None:
        # A candidate was noted when it came or ended; since then it may have been claimed, forgotten (its seq is 0) or
        # spilled, and it may be noted twice. Everything that can fail happens before the first change: if the records
        # cannot be written, the jobs stay in memory, and the state is as it was.
        by_seq = {job.seq: job for job in candidates if job.seq and can_spill(job)}
        seqs = sorted(by_seq)
        jobs = [by_seq[seq] for seq in seqs]
        records = [encode_job(job) for job in jobs]
        try:
            self.index.compact()
            locations = self._volumes.write(records) if records else []
        except OSError as error:
            if not self._is_without_room:
                LOGGER.warning("jobs stay in memory: no room for a file to keep them in (%s)", error)
            self._is_without_room = True
            return
        in_memory, discard = self.jobs, self.listing.discard
        orders: dict[OrderName, list[tuple[int, int]]] = {}
        ids, order_keys = list[str](), list[int]()
        for job in jobs:
            spec, seq = job.spec, job.seq
            ids.append(spec.id)
            dict.__delitem__(in_memory, spec.id)
            discard(seq)
            if job.state is SUCCEEDED:
                at, name, kind = finished_at(job), EVERY_FINISHED, FINISHED
            else:
                at, name, kind = job.available_at, (spec.queue, READY, spec.priority), WAITING
            order_keys.append(at << 1 | kind)
            if name in orders:
                orders[name].append((at, seq))
            else:
                orders[name] = [(at, seq)]
            job.seq = 0  # dead in the order it was in
        self.index.add(ids, seqs, order_keys, locations, records)
        for (queue, state, priority), moved in orders.items():
            order = self._order(queue, state, priority)
            order.leave_memory(moved)
            order.spill(sorted(moved))

    # From a snapshot

    def take_file(self, file: File) -> int:
        """Records of loaded jobs are read from this file; returns the location of its first byte."""
        return self._volumes.take(file)

    def load(self, records: Sequence[Raw], end: int) -> list[Job]:
        """Leave jobs of a snapshot in its file, where their records lie one behind the other up to the location `end`.
        Returns the jobs that belong into memory. One is decoded at a time: its memory is used again for the next."""
        others, are_spilled = list[Job](), list[bool]()
        ids, seqs, order_keys, orders = list[str](), list[int](), list[int](), list[OrderName]()
        for job in map(decode_job, records):
            is_spilled = can_spill(job)
            are_spilled.append(is_spilled)
            if is_spilled:
                spec, state = job.spec, job.state
                ids.append(spec.id)
                seqs.append(job.seq)
                order_keys.append(
                    job.available_at << 1 | WAITING if state is READY else finished_at(job) << 1 | FINISHED
                )
                orders.append((spec.queue, state, spec.priority))
            else:
                others.append(job)
        lengths = list(map(len, records))
        locations: Iterable[int] = accumulate(lengths[:-1], initial=end - sum(lengths))
        if others:
            records, locations = list(compress(records, are_spilled)), compress(locations, are_spilled)
        ats = [order_key >> 1 for order_key in order_keys]
        if len(set(orders)) == 1:
            self._load_into(orders[0], ats, seqs)
        else:
            for order, at, seq in zip(orders, ats, seqs, strict=True):
                self._load_into(order, (at,), (seq,))
        self.index.load(ids, seqs, order_keys, locations, records)
        self._volumes.keep(end, len(ids))
        return others

    def _load_into(self, order: OrderName, ats: Iterable[int], seqs: Iterable[int]) -> None:
        """Collect the entries of one order, and make the order if it is not there."""
        loaded = self._loaded.get(order)
        if loaded is None:
            name, state, priority = order
            queue = self.queue(name)
            if state is READY and queue.ready[priority] is None:
                queue.ready[priority] = self.ready_order()
            loaded = self._loaded[order] = array("Q"), array("Q")
        loaded[0].extend(ats)
        loaded[1].extend(seqs)

    def end_loading(self) -> None:
        """Give each order its entries: all jobs of the snapshot are loaded."""
        for (queue, state, priority), (ats, seqs) in self._loaded.items():
            self.queues[queue].counts[state] += len(ats)
            self._order(queue, state, priority).load(ats, seqs)
        self._loaded.clear()
        self.index.end_loading()
        self._volumes.close_unwanted()


def can_spill(job: Job) -> bool:
    """Nothing but jobs, listing and one order refers to it."""
    spec = job.spec
    if spec.offset is not None or job.is_cancelled:
        return False
    if job.state is SUCCEEDED:
        return True
    return job.state is READY and spec.lane is None and spec.rules is None


def _available_at(job: Job) -> int:
    return job.available_at


def _order_time(job: Job) -> int:
    """The time by which its order has it."""
    return finished_at(job) if job.state is SUCCEEDED else job.available_at
