"""A state's two orders, over jobs in memory and on the shelf.

What must never happen here: an order that differs from the one that all these jobs would have in memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, merge
from itertools import islice
from operator import gt
from typing import Final

from leasemill.kernel.index.order import CHUNK_BITS, Entry, SequenceOrder, TimeOrder
from leasemill.kernel.model import Job
from leasemill.store.file.shelf.index import ShelfIndex

MOST_RUNS: Final = 8
ENTRIES_TOLERATED: Final = 4_096
WAITING: Final = 0
FINISHED: Final = 1


class SortedRun:
    """Shelved jobs by (at, seq); those before `head` have left."""

    __slots__ = ("ats", "head", "seqs")

    def __init__(self, entries: Sequence[tuple[int, int]] = ()) -> None:
        self.ats = array("Q", [at for at, _ in entries])
        self.seqs = array("Q", [seq for _, seq in entries])
        self.head = 0

    def sort(self) -> None:
        """By time; those of one time stay as they are, which is by their sequence numbers."""
        ats, seqs = self.ats, self.seqs
        if any(map(gt, ats, islice(ats, 1, None))):
            indexes = sorted(range(len(ats)), key=ats.__getitem__)
            self.ats = array("Q", map(ats.__getitem__, indexes))
            self.seqs = array("Q", map(seqs.__getitem__, indexes))

    def __len__(self) -> int:
        return len(self.ats) - self.head

    def entries(self) -> Iterator[tuple[int, int]]:
        """From the head on, without a look at what is before it."""
        rest = range(self.head, len(self.ats))
        return zip(map(self.ats.__getitem__, rest), map(self.seqs.__getitem__, rest), strict=True)

    def drop_head(self) -> None:
        self.head += 1
        if self.head > ENTRIES_TOLERATED and self.head * 2 > len(self.ats):
            del self.ats[: self.head]
            del self.seqs[: self.head]
            self.head = 0


class ShelvedOrder(TimeOrder[Job]):
    """A TimeOrder of which a part is on the shelf, in sorted runs. An entry whose job has left the shelf, or is there
    at another place, is dead; `kind` distinguishes the orders of waiting and of succeeded jobs, since a job may be in
    one after the other with the same time."""

    __slots__ = ("_index", "_kind", "_left", "_place", "_runs", "_shelved")

    def __init__(
        self, alive: Callable[[Entry], bool], index: ShelfIndex, kind: int, place: Callable[[Job], int]
    ) -> None:
        super().__init__(alive)
        self._index = index
        self._kind = kind
        self._place = place
        self._runs: list[SortedRun] = []
        self._left: set[tuple[int, int]] = set()
        self._shelved = 0

    def __len__(self) -> int:
        return super().__len__() + self._shelved

    def order_key(self, at: int) -> int:
        return at << 1 | self._kind

    # The shelf's part

    def shelve(self, entries: Sequence[tuple[int, int]]) -> None:
        """These, in order, are on the shelf from now on, and no more in memory."""
        self._shelved += len(entries)
        last = self._runs[-1] if self._runs else None
        if last is not None and len(last) and (last.ats[-1], last.seqs[-1]) < entries[0]:
            last.ats.extend(at for at, _ in entries)
            last.seqs.extend(seq for _, seq in entries)
        else:
            self._runs.append(SortedRun(entries))
        if len(self._runs) > MOST_RUNS:
            self._merge()
        if sum(map(len, self._runs)) > 2 * self._shelved + ENTRIES_TOLERATED:
            self._runs = [SortedRun([entry for entry in self._merged(self._runs) if self._is_shelved(*entry)])]

    def load(self, ats: array[int], seqs: array[int]) -> None:
        """The places of jobs that are on the shelf, by their sequence numbers."""
        run = SortedRun()
        run.ats, run.seqs = ats, seqs
        run.sort()
        self._shelved += len(run)
        self._runs.append(run)
        if len(self._runs) > MOST_RUNS:
            self._merge()

    def _merge(self) -> None:
        """The shortest become one, and with them those that are not much longer: no entry is moved often."""
        runs = sorted(self._runs, key=len)
        count, length = 2, len(runs[0]) + len(runs[1])
        while count < len(runs) and len(runs[count]) <= 2 * length:
            length += len(runs[count])
            count += 1
        self._runs = [*runs[count:], SortedRun(list(self._merged(runs[:count])))]

    def _merged(self, runs: Sequence[SortedRun]) -> Iterator[tuple[int, int]]:
        """In order. A job that left the shelf and came back to its place may have an entry in two runs: it is one."""
        before: tuple[int, int] | None = None
        for entry in merge(*(run.entries() for run in runs)):
            if entry != before:
                yield entry
            before = entry

    def leave_memory(self, entries: Sequence[tuple[int, int]]) -> None:
        """These jobs, which are dead here, go to the shelf. They may leave dead entries in memory."""
        self._dead += len(entries)
        queue, heap, alive = self._queue, self._heap, self._alive
        while queue and not alive(queue[0]):
            queue.popleft()
            self._dead -= 1
        while heap and not alive(heap[0]):
            heappop(heap)
            self._dead -= 1
        if self._dead * 2 > len(queue) + len(heap):
            self._drop_dead()
        elif self._dead:
            self._left.update(entries)
        else:
            self._left.clear()

    def unshelve(self, at: int, job: Job) -> None:
        """This job has left the shelf. No two entries in memory have the same place: they could not be compared."""
        self._shelved -= 1
        if (at, job.seq) in self._left:
            self._drop_dead()
        self.push(at, job.seq, job, in_order=False)

    def leave_shelf(self) -> None:
        """A job that the index does not have any more has left the shelf, and goes nowhere: its entry is dead."""
        self._shelved -= 1

    def _drop_dead(self) -> None:
        super()._drop_dead()
        self._left.clear()

    def _is_shelved(self, at: int, seq: int) -> bool:
        return self._index.order_key(seq) == self.order_key(at)

    def _fronts(self) -> list[tuple[int, int]]:
        """The first shelved entry of each run."""
        fronts: list[tuple[int, int]] = []
        for run in self._runs:
            while len(run) and not self._is_shelved(run.ats[run.head], run.seqs[run.head]):
                run.drop_head()
            if len(run):
                fronts.append((run.ats[run.head], run.seqs[run.head]))
        return fronts

    # Both parts

    def first(self, limit: int, until: int) -> list[Job]:
        found = super().first(limit, until)
        if not self._shelved or limit <= 0 or not self._fronts():
            return found
        in_memory = [(self._place(job), job.seq, job) for job in found]
        shelved = [(at, seq, None) for at, seq in islice(self._due(until), limit)]
        both = sorted([*in_memory, *shelved], key=lambda entry: (entry[0], entry[1]))
        chosen = both[:limit]
        loaded = {seq: self._load(seq) for _, seq, job in chosen if job is None}
        self._index.copies = {job.spec.id: job for job in loaded.values()}
        return [job or loaded[seq] for _, seq, job in chosen]

    def _due(self, until: int) -> Iterator[tuple[int, int]]:
        for at, seq in self._merged(self._runs):
            if at > until:
                return
            if self._is_shelved(at, seq):
                yield at, seq

    def head(self) -> Entry | None:
        own = super().head()
        front = min(self._fronts(), default=None) if self._shelved else None
        if front is None or (own is not None and (own[0], own[1]) < front):
            return own
        return front[0], front[1], self._load(front[1])

    def next_at(self) -> int | None:
        own = super().next_at()
        fronts = [at for at, _ in self._fronts()] if self._shelved else []
        return min([*fronts, *(() if own is None else (own,))], default=None)

    def _load(self, seq: int) -> Job:
        job = self._index.get(seq)
        assert job is not None
        return job


class ShelvedListing(SequenceOrder):
    """A SequenceOrder of which a part is on the shelf. Jobs from there are copies: they are read, not changed."""

    __slots__ = ("_index",)

    def __init__(self, index: ShelfIndex) -> None:
        super().__init__()
        self._index = index

    def get(self, seq: int) -> Job | None:
        return super().get(seq) or self._index.get(seq)

    def after(self, seq: int) -> Iterator[Job]:
        first = (seq + 1) >> CHUNK_BITS
        for number in self._numbers(first):
            yield from self._listed(one for one in self._seqs(number) if one > seq)

    def before(self, seq: int) -> Iterator[Job]:
        last = seq >> CHUNK_BITS
        for number in reversed([number for number in self._numbers(0) if number <= last]):
            yield from self._listed(one for one in reversed(self._seqs(number)) if one < seq)

    def _numbers(self, first: int) -> list[int]:
        """Of the chunks from one on, in order."""
        in_memory, shelved = self._chunk_numbers, self._index.chunk_numbers
        return sorted({*in_memory[bisect_left(in_memory, first) :], *shelved[bisect_left(shelved, first) :]})

    def _seqs(self, number: int) -> list[int]:
        return sorted([*self._chunks.get(number, ()), *self._index.seqs(number)])

    def _listed(self, seqs: Iterator[int]) -> Iterator[Job]:
        for seq in seqs:
            job = self.get(seq)
            if job is not None:
                yield job
