"""The two orders in which the kernel finds jobs: by time, and by sequence.

Derived indexes: `kernel.state` updates them, the verbs and `kernel.read` look. No operation reads all entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Final, Generic, TypeVar

from leasemill.kernel.model import Job, JobState

T = TypeVar("T")

DEAD_ENTRIES_TOLERATED: Final = 64
CHUNK_BITS: Final = 10

Entry = tuple[int, int, Job]
"""A job by (available_at, seq)."""


class TimeOrder(Generic[T]):
    """Items by (at, key), found in order from the earliest.

    What arrives in order, as nearly everything does, waits in a queue; the rest in a heap. An item that leaves from
    the middle stays behind as a dead entry until it comes to the front or dead entries outnumber the live ones;
    `alive` distinguishes them. The front of both parts is always alive.
    """

    __slots__ = ("_alive", "_dead", "_heap", "_queue")

    def __init__(self, alive: Callable[[tuple[int, int, T]], bool]) -> None:
        self._alive = alive
        self._queue: deque[tuple[int, int, T]] = deque()
        self._heap: list[tuple[int, int, T]] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap) - self._dead

    def push(self, at: int, key: int, item: T, in_order: bool = True) -> None:
        """Add an item; `in_order` is False for one that would make later ones wait (a far future)."""
        queue = self._queue
        if in_order and queue:
            last = queue[-1]
            in_order = at > last[0] or (at == last[0] and key > last[1])
        if in_order:
            queue.append((at, key, item))
        else:
            heappush(self._heap, (at, key, item))

    def remove(self, at: int, key: int) -> None:
        """Take out the entry pushed with these keys; its item must already fail `alive`."""
        queue, heap = self._queue, self._heap
        if queue and queue[0][1] == key and queue[0][0] == at:
            queue.popleft()
            while queue and not self._alive(queue[0]):
                queue.popleft()
                self._dead -= 1
        elif heap and heap[0][1] == key and heap[0][0] == at:
            heappop(heap)
            while heap and not self._alive(heap[0]):
                heappop(heap)
                self._dead -= 1
        else:
            self._dead += 1
            if self._dead > DEAD_ENTRIES_TOLERATED and self._dead * 2 > len(queue) + len(heap):
                self._drop_dead()

    def first(self, limit: int, until: int) -> list[T]:
        """Return at most `limit` items that are due at `until`, earliest first."""
        heap = self._heap
        if not heap or heap[0][0] > until:
            entries: Iterator[tuple[int, int, T]] = iter(self._queue)
        else:
            entries = merge(self._queue, _ascending(heap), key=_keys)
        found: list[T] = []
        alive = self._alive
        for entry in entries:
            if entry[0] > until or len(found) >= limit:
                break
            if alive(entry):
                found.append(entry[2])
        return found

    def head(self) -> tuple[int, int, T] | None:
        """The earliest entry."""
        queue, heap = self._queue, self._heap
        if not heap:
            return queue[0] if queue else None
        if not queue or (heap[0][0], heap[0][1]) < (queue[0][0], queue[0][1]):
            return heap[0]
        return queue[0]

    def next_at(self) -> int | None:
        """Return the time at which the earliest item is due."""
        fronts = [part[0][0] for part in (self._queue, self._heap) if part]
        return min(fronts, default=None)

    def rekey(self, at_of: Callable[[T], int]) -> None:
        """The times of items have changed, of any number of them: each is found by its own from now on."""
        found = {key: item for _, key, item in (*self._queue, *self._heap)}
        entries = [(at_of(item), key, item) for key, item in found.items()]
        self._queue = deque(sorted(filter(self._alive, entries), key=_keys))
        self._heap = []
        self._dead = 0

    def _drop_dead(self) -> None:
        self._queue = deque(entry for entry in self._queue if self._alive(entry))
        self._heap = [entry for entry in self._heap if self._alive(entry)]
        heapify(self._heap)
        self._dead = 0


def is_claimable(entry: Entry) -> bool:
    """Return True if this is still the position of the job in its order."""
    job = entry[2]
    return job.state is JobState.READY and job.seq == entry[1] and job.available_at == entry[0]


def _keys(entry: tuple[int, int, object]) -> tuple[int, int]:
    return entry[0], entry[1]


def _ascending(heap: list[tuple[int, int, T]]) -> Iterator[tuple[int, int, T]]:
    """A heap's entries in order, without changing it, computed only as far as they are read."""
    frontier = [(heap[0][0], heap[0][1], 0)]
    while frontier:
        _, _, index = heappop(frontier)
        yield heap[index]
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heappush(frontier, (heap[child][0], heap[child][1], child))


class SequenceOrder:
    """Jobs by their sequence number, for reading page by page from any position."""

    __slots__ = ("_chunk_numbers", "_chunks", "_latest", "_latest_number")

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, Job]] = {}
        self._chunk_numbers: list[int] = []
        self._latest: dict[int, Job] = {}
        self._latest_number = -1

    def __contains__(self, seq: int) -> bool:
        return self.get(seq) is not None

    def get(self, seq: int) -> Job | None:
        chunk = self._chunks.get(seq >> CHUNK_BITS)
        return None if chunk is None else chunk.get(seq)

    def add(self, job: Job) -> None:
        seq = job.seq
        number = seq >> CHUNK_BITS
        if number != self._latest_number:
            self._latest_number, self._latest = number, self._chunk(number)
        self._latest[seq] = job

    def _chunk(self, number: int) -> dict[int, Job]:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = {}
            if self._chunk_numbers and number < self._chunk_numbers[-1]:
                insort(self._chunk_numbers, number)
            else:
                self._chunk_numbers.append(number)
        return chunk

    def discard(self, seq: int) -> None:
        number = seq >> CHUNK_BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            return
        chunk.pop(seq, None)
        if not chunk:
            if number == self._latest_number:
                self._latest_number = -1
            del self._chunks[number]
            del self._chunk_numbers[bisect_left(self._chunk_numbers, number)]

    def after(self, seq: int) -> Iterator[Job]:
        """Jobs with a higher sequence number, in order."""
        first = bisect_left(self._chunk_numbers, (seq + 1) >> CHUNK_BITS)
        for number in islice(self._chunk_numbers, first, None):
            chunk = self._chunks[number]
            for one in sorted(chunk):
                if one > seq:
                    yield chunk[one]

    def before(self, seq: int) -> Iterator[Job]:
        """Jobs with a lower sequence number, the highest first."""
        end = bisect_left(self._chunk_numbers, (seq >> CHUNK_BITS) + 1)
        for index in range(end - 1, -1, -1):
            chunk = self._chunks[self._chunk_numbers[index]]
            for one in sorted(chunk, reverse=True):
                if one < seq:
                    yield chunk[one]
