"""A state most of whose jobs are on the shelf: those that wait and nothing depends on, and those that have succeeded.

Whoever takes a job by its id gets it into memory, in every order it belongs to, so that the kernel may change it;
`tidy`, between commands, puts back what can go. The counts, and all other jobs, are in memory as ever. What must never
happen here: a job that is in memory and on the shelf, or in neither.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, ItemsView, Iterable, ValuesView
from typing import Any, Final, TypeAlias

from msgspec import Raw

from leasemill.kernel.model import Job, JobState
from leasemill.kernel.order import TimeOrder, is_claimable
from leasemill.kernel.state import READY, SUCCEEDED, State, finished_at, is_finished
from leasemill.store.wal.disk import File
from leasemill.store.wal.shelf.index import NewEntry, ShelfIndex, encode_job
from leasemill.store.wal.shelf.orders import FINISHED, WAITING, ShelvedListing, ShelvedOrder
from leasemill.store.wal.shelf.volumes import Volumes

LOGGER: Final = logging.getLogger("leasemill.wal")
KEPT_IN_MEMORY: Final = 4_000
"""The latest jobs that were enqueued, and the latest that succeeded: most are looked at again soon."""
TIDIED_AT_ONCE: Final = 1_000
"""It takes some milliseconds, in which the process does nothing else."""

EVERY_FINISHED: Final = ("", SUCCEEDED, 0)  # of all queues and priorities
LoadedPlaces: TypeAlias = tuple["array[int]", "array[int]"]


class ShelvedJobs(dict[str, Job]):
    """Jobs by id. The dictionary itself has those in memory."""

    __slots__ = ("_state",)

    def __init__(self, state: ShelvedState) -> None:
        super().__init__()
        self._state = state

    def get(self, job_id: str, default: Any = None) -> Any:
        job = super().get(job_id)
        if job is None:
            job = self._state.unshelve(job_id)
        return default if job is None else job

    def __missing__(self, job_id: str) -> Job:
        job = self._state.unshelve(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def __contains__(self, job_id: object) -> bool:
        return super().__contains__(job_id) or self._state.index.find(str(job_id)) is not None

    def __len__(self) -> int:
        return super().__len__() + len(self._state.index)

    def __setitem__(self, job_id: str, job: Job) -> None:
        super().__setitem__(job_id, job)
        self._state.enqueued.append(job)

    def values(self) -> ValuesView[Job]:  # type: ignore[override]
        """All of them, in memory from then on: for checks."""
        self._state.unshelve_all()
        return super().values()

    def items(self) -> ItemsView[str, Job]:  # type: ignore[override]
        self._state.unshelve_all()
        return super().items()


class FinishedOrder(ShelvedOrder):
    """Succeeded jobs by the time they ended, for retention; those that were added last are noted for the shelf."""

    __slots__ = ("latest",)

    def __init__(self, index: ShelfIndex) -> None:
        super().__init__(is_finished, index, FINISHED, finished_at)
        self.latest: list[Job] = []

    def push(self, at: int, key: int, item: Job, in_order: bool = True) -> None:
        super().push(at, key, item, in_order)
        self.latest.append(item)


class ShelvedState(State):
    """Close it when it is not used any more: it has files open."""

    __slots__ = ("_is_without_room", "_loaded", "_volumes", "enqueued", "index")

    def __init__(self, make_scratch: Callable[[], File]) -> None:
        super().__init__()
        self._volumes = Volumes(make_scratch)
        self._is_without_room = False
        self._loaded: dict[tuple[str, JobState, int], LoadedPlaces] = {}
        self.index = ShelfIndex(self._volumes)
        self.enqueued: list[Job] = []
        self.jobs: dict[str, Job] = ShelvedJobs(self)
        self.listing = ShelvedListing(self.index)
        self.finished: TimeOrder[Job] = FinishedOrder(self.index)

    def close(self) -> None:
        self._volumes.close()

    def ready_order(self) -> TimeOrder[Job]:
        return ShelvedOrder(is_claimable, self.index, WAITING, _available_at)

    def look(self, job_id: str) -> Job | None:
        """A job to be read: from the shelf, a copy."""
        return dict.get(self.jobs, job_id) or self.index.find(job_id)

    def _order(self, queue: str, state: JobState, priority: int) -> ShelvedOrder:
        """The one order that a job which may be shelved is in."""
        if state is SUCCEEDED:
            order: TimeOrder[Job] | None = self.finished
        else:
            order = self.queues[queue].ready[priority]
        assert isinstance(order, ShelvedOrder)
        return order

    # Back into memory

    def unshelve(self, job_id: str) -> Job | None:
        job = self.index.find(job_id)
        if job is None:
            return None
        self.index.remove(job)
        dict.__setitem__(self.jobs, job_id, job)
        self.listing.add(job)
        self._order(job.spec.queue, job.state, job.spec.priority).unshelve(_place(job), job)
        return job

    def unshelve_all(self) -> None:
        for number in list(self.index.chunk_numbers):
            for seq in list(self.index.seqs(number)):
                job = self.index.get(seq)
                assert job is not None
                self.unshelve(job.spec.id)

    # Onto the shelf

    def tidy(self) -> None:
        """Between commands: shelve what came or ended longest ago, a good number at a time."""
        most = KEPT_IN_MEMORY + TIDIED_AT_ONCE
        if len(self.enqueued) >= most:
            self._shelve(job for job in _oldest(self.enqueued) if job.state is READY)
        finished = self.finished
        assert isinstance(finished, FinishedOrder)
        if len(finished.latest) >= most:
            self._shelve(job for job in _oldest(finished.latest) if job.state is SUCCEEDED)

    def _shelve(self, candidates: Iterable[Job]) -> None:
        in_memory = self.jobs
        jobs = sorted(
            {job.seq: job for job in candidates if job.seq and may_be_shelved(job)}.values(), key=lambda job: job.seq
        )
        records = [encode_job(job) for job in jobs]
        try:
            self.index.tidy_volumes()
            locations = self._volumes.write(records) if records else []
        except OSError as error:
            if not self._is_without_room:
                LOGGER.warning("jobs stay in memory: no room for a file to keep them in (%s)", error)
            self._is_without_room = True
            return
        orders: dict[tuple[str, JobState, int], list[tuple[int, int]]] = {}
        entries: list[NewEntry] = []
        for job, record, location in zip(jobs, records, locations, strict=True):
            spec, seq, at = job.spec, job.seq, _place(job)
            dict.__delitem__(in_memory, spec.id)
            self.listing.discard(seq)
            if job.state is SUCCEEDED:
                orders.setdefault(EVERY_FINISHED, []).append((at, seq))
                entries.append((spec.id, seq, at << 1 | FINISHED, location, record))
            else:
                orders.setdefault((spec.queue, READY, spec.priority), []).append((at, seq))
                entries.append((spec.id, seq, at << 1 | WAITING, location, record))
            job.seq = 0  # dead in the order it was in
        self.index.add(entries)
        for (queue, state, priority), moved in orders.items():
            order = self._order(queue, state, priority)
            order.leave_memory(moved)
            order.shelve(sorted(moved))

    # From a snapshot

    def take_file(self, file: File) -> int:
        """Records of loaded jobs are read from this file; returns the location of its first byte."""
        return self._volumes.take(file)

    def load(self, jobs: Iterable[Job], records: Iterable[Raw], location: int) -> list[Job]:
        """Shelve jobs of a snapshot, whose records lie there one behind the other; those that belong into memory are
        returned."""
        first, entries, others, loaded = location, list[NewEntry](), list[Job](), self._loaded
        for job, record in zip(jobs, records, strict=True):
            if may_be_shelved(job):
                spec, state, seq = job.spec, job.state, job.seq
                ats, seqs = loaded.get((spec.queue, state, spec.priority)) or self._load_into(job)
                at = job.available_at if state is READY else finished_at(job)
                ats.append(at)
                seqs.append(seq)
                entries.append(
                    (spec.id, seq, at << 1 | (FINISHED if state is SUCCEEDED else WAITING), location, record)
                )
            else:
                others.append(job)
            location += len(record)
        self.index.load(entries)
        self._volumes.keep(first, len(entries))
        return others

    def _load_into(self, job: Job) -> LoadedPlaces:
        """Where the places of jobs like this one are collected. All orders that they need are there then."""
        spec, queue = job.spec, self.queue(job.spec.queue)
        if job.state is READY and queue.ready[spec.priority] is None:
            queue.ready[spec.priority] = self.ready_order()
        places = self._loaded[spec.queue, job.state, spec.priority] = array("Q"), array("Q")
        return places

    def end_loading(self) -> None:
        """All jobs of the snapshot are loaded."""
        for (queue, state, priority), (ats, seqs) in self._loaded.items():
            self.queues[queue].counts[state] += len(ats)
            self._order(queue, state, priority).load(ats, seqs)
        self._loaded.clear()
        self.index.end_loading()
        self._volumes.close_unwanted()


def _oldest(jobs: list[Job]) -> list[Job]:
    """Taken out of the list: all but the latest."""
    count = len(jobs) - KEPT_IN_MEMORY
    oldest = jobs[:count]
    del jobs[:count]
    return oldest


def may_be_shelved(job: Job) -> bool:
    """Nothing but jobs, listing and one order refers to it."""
    spec = job.spec
    if spec.offset is not None or job.is_cancelled:
        return False
    if job.state is SUCCEEDED:
        return True
    return job.state is READY and spec.lane is None and spec.rules is None


def _available_at(job: Job) -> int:
    return job.available_at


def _place(job: Job) -> int:
    """Where it stands in its order."""
    return finished_at(job) if job.state is SUCCEEDED else job.available_at
