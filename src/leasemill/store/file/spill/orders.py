"""A state's two orders, over jobs in memory and spilled ones.

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
from leasemill.store.file.spill.index import SpillIndex

MOST_RUNS: Final = 8
ENTRIES_TOLERATED: Final = 4_096
WAITING: Final = 0
FINISHED: Final = 1


class SortedRun:
    """Spilled jobs by (at, seq); those before `head` have left."""

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


class SpilledOrder(TimeOrder[Job]):
    """A TimeOrder of which a part is spilled, in sorted runs.

    A batch of spilled jobs is sorted, and becomes a run of its own unless it continues the latest. The runs are merged
    as they are read; when there are more than eight, the shortest become one, so an entry is moved a logarithmic number
    of times. Nothing is deleted from the middle of a run: an entry whose job was reloaded, or spilled again at another
    time, is dead, and is skipped because the index no longer has this order key for its job. When the dead outnumber
    the living, all runs are written anew without them.

    `kind` distinguishes the orders of waiting and of succeeded jobs, since a job may be in one after the other with
    the same time."""

    __slots__ = ("_index", "_kind", "_left", "_order_time", "_runs", "_spilled")

    def __init__(
        self, alive: Callable[[Entry], bool], index: SpillIndex, kind: int, order_time: Callable[[Job], int]
    ) -> None:
        super().__init__(alive)
        self._index = index
        self._kind = kind
        self._order_time = order_time
        self._runs: list[SortedRun] = []
        self._left: set[tuple[int, int]] = set()
        self._spilled = 0

    def __len__(self) -> int:
        return super().__len__() + self._spilled

    def order_key(self, at: int) -> int:
        return at << 1 | self._kind

    # The spilled part

    def spill(self, entries: Sequence[tuple[int, int]]) -> None:
        """Take over these entries, which are in order, of jobs that were spilled just now."""
        self._spilled += len(entries)
        last = self._runs[-1] if self._runs else None
        if last is not None and len(last) and (last.ats[-1], last.seqs[-1]) < entries[0]:
            last.ats.extend(at for at, _ in entries)
            last.seqs.extend(seq for _, seq in entries)
        else:
            self._runs.append(SortedRun(entries))
        if len(self._runs) > MOST_RUNS:
            self._merge()
        if sum(map(len, self._runs)) > 2 * self._spilled + ENTRIES_TOLERATED:
            self._runs = [SortedRun([entry for entry in self._merged(self._runs) if self._is_spilled(*entry)])]

    def load(self, ats: array[int], seqs: array[int]) -> None:
        """Take over the entries of jobs that were left in a snapshot, by their sequence numbers."""
        run = SortedRun()
        run.ats, run.seqs = ats, seqs
        run.sort()
        self._spilled += len(run)
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
        """Yield entries in order. A job that was reloaded and spilled again may have an entry in two runs."""
        before: tuple[int, int] | None = None
        for entry in merge(*(run.entries() for run in runs)):
            if entry != before:
                yield entry
            before = entry

    def leave_memory(self, entries: Sequence[tuple[int, int]]) -> None:
        """Forget the entries in memory of these jobs, which were spilled.

        Their entries are dead (`alive` sees that their seq is 0) and are dropped where that is cheap: at both fronts,
        or all together once they outnumber the living. Those that stay behind are remembered in `_left`: if such a job
        is reloaded, a second entry with equal keys would be compared by the jobs themselves, which have no order."""
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

    def reload(self, at: int, job: Job) -> None:
        """Put the entry of a job that was reloaded back into memory. No two entries there may have equal keys."""
        self._spilled -= 1
        if (at, job.seq) in self._left:
            self._drop_dead()
        self.push(at, job.seq, job, in_order=False)

    def drop_spilled(self) -> None:
        """Count a job as gone that the index does not have any more, and that was not reloaded: its entry is dead."""
        self._spilled -= 1

    def _drop_dead(self) -> None:
        super()._drop_dead()
        self._left.clear()

    def _is_spilled(self, at: int, seq: int) -> bool:
        return self._index.order_key(seq) == self.order_key(at)

    def _fronts(self) -> list[tuple[int, int]]:
        """Return the first live entry of each run, and drop the dead ones before it."""
        fronts: list[tuple[int, int]] = []
        for run in self._runs:
            while len(run) and not self._is_spilled(run.ats[run.head], run.seqs[run.head]):
                run.drop_head()
            if len(run):
                fronts.append((run.ats[run.head], run.seqs[run.head]))
        return fronts

    # Both parts

    def first(self, limit: int, until: int) -> list[Job]:
        found = super().first(limit, until)
        if not self._spilled or limit <= 0 or not self._fronts():
            return found
        in_memory = [(self._order_time(job), job.seq, job) for job in found]
        spilled = [(at, seq, None) for at, seq in islice(self._due(until), limit)]
        both = sorted([*in_memory, *spilled], key=lambda entry: (entry[0], entry[1]))
        chosen = both[:limit]
        loaded = {seq: self._load(seq) for _, seq, job in chosen if job is None}
        self._index.copies = {job.spec.id: job for job in loaded.values()}
        return [job or loaded[seq] for _, seq, job in chosen]

    def _due(self, until: int) -> Iterator[tuple[int, int]]:
        for at, seq in self._merged(self._runs):
            if at > until:
                return
            if self._is_spilled(at, seq):
                yield at, seq

    def head(self) -> Entry | None:
        own = super().head()
        front = min(self._fronts(), default=None) if self._spilled else None
        if front is None or (own is not None and (own[0], own[1]) < front):
            return own
        return front[0], front[1], self._load(front[1])

    def next_at(self) -> int | None:
        own = super().next_at()
        fronts = [at for at, _ in self._fronts()] if self._spilled else []
        return min([*fronts, *(() if own is None else (own,))], default=None)

    def _load(self, seq: int) -> Job:
        job = self._index.get(seq)
        assert job is not None
        return job


class SpilledListing(SequenceOrder):
    """A SequenceOrder of which a part is spilled. Jobs from there are copies: they are read, not changed."""

    __slots__ = ("_index",)

    def __init__(self, index: SpillIndex) -> None:
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
        in_memory, spilled = self._chunk_numbers, self._index.chunk_numbers
        return sorted({*in_memory[bisect_left(in_memory, first) :], *spilled[bisect_left(spilled, first) :]})

    def _seqs(self, number: int) -> list[int]:
        return sorted([*self._chunks.get(number, ()), *self._index.seqs(number)])

    def _listed(self, seqs: Iterator[int]) -> Iterator[Job]:
        for seq in seqs:
            job = self.get(seq)
            if job is not None:
                yield job
