"""Jobs under limits: which of them is next, found without looking at those that wait. Rules T1 to T12.

Jobs of one queue and priority that are under limits stand behind gates, one for each limit and key they name. Gates
nest: behind the gate of `stripe` stand the gates of its customers, and the jobs behind those. A gate lists its children
by the first job behind each. Looking for the next job sets aside a gate that is shut (no place, or a rate that is not
due); it is listed again when a place is free, its instant has passed or its numbers change. That is the index catching
up with the state: it changes nothing that can be read.

All of this is derived but `tat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from leasemill.kernel.index.order import Entry, TimeOrder, is_claimable
from leasemill.kernel.model import Job, LimitRecord, LimitTerms, LimitUse

STALE_TOLERATED: Final = 64
NO_TERMS: Final = LimitTerms()


class NamedLimit:
    """A name: the numbers that hold for it, and the keys in use. A name without numbers limits nothing."""

    __slots__ = ("held", "name", "record", "tallies", "terms", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.record: LimitRecord | None = None
        self.terms = NO_TERMS
        self.tallies: dict[str | None, Tally] = {}
        self.held = 0
        self.waiting = 0

    def tally(self, key: str | None) -> Tally:
        tally = self.tallies.get(key)
        if tally is None:
            tally = self.tallies[key] = Tally(self, key)
        return tally

    def is_idle(self) -> bool:
        return self.record is None and not self.tallies


class Tally:
    """A limit with one key: who holds its places, how far its rate is used, and the gates it has shut.

    `tat` is the theoretical arrival time of the generic cell rate algorithm (T10); 0: the rate is not in use.
    """

    __slots__ = ("holders", "key", "limit", "shut", "tat", "waiting")

    def __init__(self, limit: NamedLimit, key: str | None) -> None:
        self.limit = limit
        self.key = key
        self.holders: dict[str, None] = {}
        self.waiting = 0
        self.tat = 0
        self.shut: dict[Gate, None] = {}

    def has_place(self) -> bool:
        places = self.limit.terms.places
        return places is None or len(self.holders) < places

    def opens_at(self) -> int:
        """Return the time at which the rate has room for a grant."""
        return opens_at(self.limit.terms, self.tat) if self.tat else 0

    def is_open(self, now: int) -> bool:
        return self.has_place() and self.opens_at() <= now

    def is_idle(self) -> bool:
        return not self.holders and not self.waiting and not self.tat

    def hold(self, job_id: str) -> None:
        """T1: a lease holds one place."""
        self.holders[job_id] = None
        self.limit.held += 1

    def give_back(self, job_id: str) -> None:
        """T3: its end gives the place back."""
        del self.holders[job_id]
        self.limit.held -= 1
        if self.shut and self.has_place():
            self.reopen()

    def reopen(self) -> None:
        """List the gates again that were set aside; one that is still shut is set aside again when its turn comes."""
        shut, self.shut = self.shut, {}
        for gate in shut:
            _reopen(gate)


class Gate:
    """The jobs of a queue and priority under a limit with one key, among those behind the parent's gate.

    `key`: what it is listed by in its parent, at most (available_at, seq) of the first job behind it; None: not listed.
    `until`: when it opens, if a rate has shut it.
    """

    __slots__ = ("children", "front", "is_shut", "jobs", "key", "parent", "tally", "until")

    def __init__(self, parent: Gate | None, tally: Tally | None) -> None:
        self.parent = parent
        self.tally = tally
        self.children: dict[Tally, Gate] = {}
        self.front: list[tuple[int, int, Gate]] = []
        self.jobs: TimeOrder[Job] = TimeOrder(is_claimable)
        self.key: tuple[int, int] | None = None
        self.is_shut = False
        self.until: int | None = None

    def __lt__(self, other: Gate) -> bool:
        """Order entries with equal keys: all but one are of gates that are gone."""
        return id(self) < id(other)


class Gates:
    """The gates of one queue, by priority."""

    __slots__ = ("_number", "_timed", "roots")

    def __init__(self) -> None:
        self.roots: dict[int, Gate] = {}
        self._timed: list[tuple[int, int, Gate]] = []
        self._number = 0

    def add(self, path: Sequence[Tally], job: Job, is_due: bool) -> None:
        gate = self.roots.get(job.spec.priority)
        if gate is None:
            gate = self.roots[job.spec.priority] = Gate(None, None)
        for tally in path:
            tally.waiting += 1
            tally.limit.waiting += 1
            child = gate.children.get(tally)
            if child is None:
                child = gate.children[tally] = Gate(gate, tally)
            gate = child
        gate.jobs.push(job.available_at, job.seq, job, is_due)
        _list(gate, (job.available_at, job.seq))

    def remove(self, path: Sequence[Tally], job: Job, available_at: int) -> None:
        """Take out a job that is no longer READY, and the gates that have no jobs behind them any more."""
        gate = self.roots[job.spec.priority]
        for tally in path:
            tally.waiting -= 1
            tally.limit.waiting -= 1
            gate = gate.children[tally]
        gate.jobs.remove(available_at, job.seq)
        while gate.parent is not None and gate.tally is not None and not gate.jobs and not gate.children:
            del gate.parent.children[gate.tally]
            gate.tally.shut.pop(gate, None)
            gate.key = gate.until = None
            gate = gate.parent
        if gate.parent is None and not gate.children:
            del self.roots[job.spec.priority]

    def first(self, priority: int, now: int) -> Entry | None:
        """The first job of this priority that every limit it names lets through; it may not be due yet."""
        self._reopen_timed(now)
        root = self.roots.get(priority)
        return None if root is None else self._first(root, now)

    def next_at(self, now: int) -> int | None:
        """T12: the first instant, now or later, at which a job is claimable if no place comes back before; if that is
        now, when the job was due. The same for the same state, whatever gates are set aside."""
        self._reopen_timed(now)
        timed, then = self._timed, now
        while True:
            firsts = [self._first(root, then) for root in self.roots.values()]
            at = min((entry[0] for entry in firsts if entry is not None), default=None)
            while timed and not _is_timed(timed[0]):
                heappop(timed)
            if at is not None and (at <= then or not timed or at <= timed[0][0]):
                return at if then == now else max(at, then)
            if not timed:
                return None
            then = timed[0][0]
            self._reopen_first(timed)  # one at a time: many may open at this instant

    def is_timed(self, gate: Gate) -> bool:
        """Return True if an instant will list this gate again. For tests: it reads everything."""
        return any(entry[2] is gate and _is_timed(entry) for entry in self._timed)

    def _first(self, gate: Gate, now: int) -> Entry | None:
        own, front = gate.jobs.head(), gate.front
        while front:
            at, seq, child = front[0]
            if child.key != (at, seq):
                heappop(front)
            elif own is not None and (own[0], own[1]) < (at, seq):
                break
            elif self._is_shut(child, now):
                heappop(front)
            else:
                found = self._first(child, now)
                if found is not None and (found[0], found[1]) == (at, seq):
                    return found
                heappop(front)  # its first job is gone
                child.key = None
                if found is not None:
                    _list(child, (found[0], found[1]))
        return own

    def _is_shut(self, gate: Gate, now: int) -> bool:
        tally = gate.tally
        assert tally is not None
        if tally.has_place():
            until = tally.opens_at()
            if until <= now:
                return False
            gate.until = until
            self._number += 1
            heappush(self._timed, (until, self._number, gate))
        gate.key = None
        gate.is_shut = True
        tally.shut[gate] = None
        return True

    def _reopen_timed(self, now: int) -> None:
        timed = self._timed
        while timed and timed[0][0] <= now:
            self._reopen_first(timed)

    def _reopen_first(self, timed: list[tuple[int, int, Gate]]) -> None:
        entry = heappop(timed)
        if _is_timed(entry):
            gate = entry[2]
            assert gate.tally is not None
            del gate.tally.shut[gate]
            _reopen(gate)


def _is_timed(entry: tuple[int, int, Gate]) -> bool:
    return entry[2].until == entry[0]


def _reopen(gate: Gate) -> None:
    gate.is_shut = False
    gate.until = None
    own, front = gate.jobs.head(), gate.front
    while front and front[0][2].key != (front[0][0], front[0][1]):
        heappop(front)
    keys = [(entry[0], entry[1]) for entry in (own, front[0] if front else None) if entry is not None]
    if keys:
        _list(gate, min(keys))


def _list(gate: Gate, key: tuple[int, int]) -> None:
    """A job that sorts by `key` is behind this gate: list the gate, and those around it, no later than that."""
    while (parent := gate.parent) is not None and not gate.is_shut and (gate.key is None or key < gate.key):
        gate.key = key
        heappush(parent.front, (*key, gate))
        if len(parent.front) > STALE_TOLERATED + 2 * len(parent.children):
            parent.front = [(*child.key, child) for child in parent.children.values() if child.key is not None]
            heapify(parent.front)
        gate = parent


def by_breadth(limits: tuple[LimitUse, ...]) -> tuple[LimitUse, ...]:
    """Limits in the order of their gates: those that many jobs share come first, and have few gates."""
    if len(limits) == 1:
        return limits
    return tuple(sorted(limits, key=lambda use: (use.key is not None, use.name, use.key or "")))


# The generic cell rate algorithm ---------------------------------------------------------------------------------


def interval_us(terms: LimitTerms) -> int:
    """The time that one grant uses up; rounded up, so that there is never one more than the rate allows."""
    if terms.rate is None or terms.per_us is None:
        return 0
    return -(-terms.per_us // terms.rate)


def opens_at(terms: LimitTerms, tat: int) -> int:
    """T10: a grant needs max(tat, now) + interval <= now + burst * interval; the first instant that has it."""
    return tat - ((terms.burst or 1) - 1) * interval_us(terms)


def charged(terms: LimitTerms, tat: int, now: int) -> int:
    """T10: `tat` after a grant."""
    return max(tat, now) + interval_us(terms)


def held_until(terms: LimitTerms, tat: int, until: int) -> int:
    """T13: `tat` such that nothing is granted before `until`, and no burst at that instant."""
    return max(tat, until + ((terms.burst or 1) - 1) * interval_us(terms))


def cut(terms: LimitTerms, tat: int, now: int) -> int:
    """T14: `tat` under new terms: no job waits longer than it would have with these from the start."""
    return min(tat, now + (terms.burst or 1) * interval_us(terms))
