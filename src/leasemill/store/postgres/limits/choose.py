"""The choice of a claim under limits among the jobs it loaded: pure. Rules T1 to T12, by the kernel's arithmetic.

A claim walks through jobs in its order: those of `ready` that nobody has looked at, and those of lines whose gates are
open. A job with a full limit is parked in its line, at the gate of that limit; the others are granted. What is loaded
is the beginning of each order: the walk goes no further than the first of them that may have more to it, and then more
is loaded. What must never happen here: I/O, or a grant that a limit has no room for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from leasemill.kernel.index.limit_index import NO_TERMS, charged, interval_us, opens_at
from leasemill.kernel.model import QUEUE_LIMIT, LimitRecord
from leasemill.kernel.verbs.limits import terms_of
from leasemill.store.postgres.limits.snapshot import (
    LAST,
    NO_KEY,
    Candidate,
    LimitKey,
    LimitSnapshot,
    OpenGate,
    OpenLine,
    WalkKey,
    terms_of_row,
    uses_of,
)


class Window(NamedTuple):
    """How much of each order is loaded at a time."""

    ready: int
    gates: int
    lines: int
    jobs: int


class Pick(NamedTuple):
    """`uses`: the limits it names; its queue's own is not among them."""

    job: Candidate
    uses: tuple[LimitKey, ...]


class Parked(NamedTuple):
    job: Candidate
    gate: LimitKey
    is_open: bool
    """The limit has room: the claim has no slot for a job under a limit."""


class GateLeft(NamedTuple):
    gate: OpenGate
    place: WalkKey
    is_open: bool


class Chosen(NamedTuple):
    """The outcome of one walk, for the jobs, lines and gates that were loaded."""

    picks: list[Pick]
    parked: list[Parked]
    lines_gone: list[OpenLine]
    lines_left: list[tuple[OpenLine, LimitKey, WalkKey]]
    gates_gone: list[OpenGate]
    gates_left: list[GateLeft]
    has_more: bool
    """There may be more to grant that is not loaded."""
    is_stopped: bool
    """I2: the next job has had the token that is meant for it."""


class Charge(NamedTuple):
    """The use of a rate by grants: `tat` before them, and by how much they move it, from there or from now if later."""

    tat: int
    used_us: int


class Room:
    """The room that limits have left, as grants use it up."""

    def __init__(self, loaded: LimitSnapshot) -> None:
        self.now = loaded.now
        self.terms = {
            one.name: terms_of(LimitRecord(one.name, terms_of_row(one.declared), set=terms_of_row(one.set_terms)))
            for one in loaded.terms or ()
        }
        self.held = defaultdict[LimitKey, int](int)
        self.tats = defaultdict[LimitKey, int](int)
        self.charged: dict[LimitKey, Charge] = {}
        for use in loaded.uses or ():
            self.held[use.name, use.key] = use.held
            self.tats[use.name, use.key] = use.tat

    def opens_at(self, limit: LimitKey) -> int | None:
        """T12: when its rate has room; None: it has."""
        tat = self.tats[limit]
        at = opens_at(self.terms.get(limit[0], NO_TERMS), tat) if tat else 0
        return at if at > self.now else None

    def is_full(self, limit: LimitKey) -> bool:
        places = self.terms.get(limit[0], NO_TERMS).places
        return (places is not None and self.held[limit] >= places) or self.opens_at(limit) is not None

    def first_full(self, uses: Iterable[LimitKey]) -> LimitKey | None:
        return next((limit for limit in uses if self.is_full(limit)), None)

    def take(self, uses: Iterable[LimitKey]) -> None:
        """T2, T11: a place of each, and its share of each rate."""
        for limit in uses:
            self.held[limit] += 1
            terms = self.terms.get(limit[0], NO_TERMS)
            if terms.rate is not None:
                before = self.charged.get(limit, Charge(self.tats[limit], 0))
                self.charged[limit] = before._replace(used_us=before.used_us + interval_us(terms))
                self.tats[limit] = charged(terms, self.tats[limit], self.now)


class LimitWalk:
    """One walk through what was loaded. `queues`: by their turns, from 1; `tokens`: one for each job it may grant."""

    def __init__(
        self,
        loaded: LimitSnapshot,
        room: Room,
        queues: Sequence[str],
        tokens: Sequence[str],
        slots: int,
        window: Window,
    ) -> None:
        self._loaded = loaded
        self._room = room
        self._queues = queues
        self._tokens = tokens
        self._slots = slots
        self._lines = {(line.turn, line.id): line for line in loaded.lines or ()}
        self._jobs = defaultdict[tuple[int, str], list[Candidate]](list)
        self._ready: list[Candidate] = []
        for job in loaded.candidates or ():
            if job.line is None:
                self._ready.append(job)
            else:
                self._jobs[job.turn, job.line].append(job)
        self._window = window
        self._rooms = {(one.turn, (one.name, one.key)): one.room for one in loaded.gates or ()}
        self._moved: dict[tuple[int, str], LimitKey] = {}
        """Lines that were found behind another limit than the one at whose gate they stood."""
        self._done: dict[tuple[int, str], int] = defaultdict(int)
        """How many jobs of a line were granted."""
        self._shut: set[tuple[int, LimitKey]] = set()
        self.picks: list[Pick] = []
        self.parked: list[Parked] = []

    @property
    def slots(self) -> int:
        return self._slots

    def go(self) -> Chosen:
        # The candidates are the beginnings of many orders: `ready`, and each line at each open gate. Sorted together
        # they are the claim's order (C2) up to the frontier, where the first of those orders is cut off: behind it
        # stands what is not loaded. Granting fills limits, and what stands behind a full limit cannot be granted before
        # that limit has room again, so the frontier only moves on, and is worked out again only when a job is found
        # behind it.
        frontier = self._frontier()
        is_stopped = False
        reached_end = True
        for job in sorted(self._loaded.candidates or (), key=_key):
            if job.key > frontier:
                frontier = self._frontier()
            if job.key > frontier or len(self.picks) >= len(self._tokens):
                reached_end = False
                break
            if not self._look_at(job):
                is_stopped = True
                break
        is_short = not is_stopped and len(self.picks) < len(self._tokens)
        has_more = is_short and (not reached_end or self._frontier() < LAST)
        return self._chosen(has_more and not self._are_queues_full(), is_stopped)

    def _frontier(self) -> WalkKey:
        """Up to here everything is loaded, but for what stands behind a limit that is full."""
        # An order that was loaded in full has no end here. One that fills its window may go on, so nothing behind its
        # last job is certain. A gate that is full is left out: whatever else stands at it would be passed over anyway.
        window, ends = self._window, [LAST]
        if len(self._ready) >= window.ready:
            ends.append(max(job.key for job in self._ready))
        gates, lines = self._loaded.gates or [], self._loaded.lines or []
        if window.gates and len(gates) >= window.gates:
            ends.append(max(map(_key_of, gates)))
        at_gates = defaultdict[tuple[int, LimitKey], list[WalkKey]](list)
        for line in lines:
            at_gates[line.turn, (line.name, line.key)].append(_key_of(line))
        shut = {gate for gate in self._rooms if self._room.is_full(gate[1])}
        ends += [
            max(places)
            for gate, places in at_gates.items()
            if gate not in shut and self._may_have_more_lines(gate, len(places))
        ]
        ends += [
            jobs[-1].key
            for line, jobs in self._jobs.items()
            if self._gate_of(line) not in shut and self._may_have_more_jobs(line)
        ]
        return min(ends)

    def _gate_of(self, line: tuple[int, str]) -> tuple[int, LimitKey]:
        one = self._lines[line]
        return one.turn, (one.name, one.key)

    def _may_have_more_lines(self, gate: tuple[int, LimitKey], count: int) -> bool:
        room = self._rooms[gate]
        return count >= (self._window.lines if room is None else min(room, self._window.lines))

    def _may_have_more_jobs(self, line: tuple[int, str]) -> bool:
        room = self._rooms[self._gate_of(line)]
        return len(self._jobs[line]) >= (self._window.jobs if room is None else min(room, self._window.jobs))

    def _look_at(self, job: Candidate) -> bool:
        """Grant it, park it or pass it over. False: the walk ends here (I2)."""
        # The order of the questions matters: a job in a line is granted only as the first of what is left there, and a
        # job with several limits belongs to the first one that is full, at whose gate it then waits.
        room, line = self._room, None if job.line is None else (job.turn, job.line)
        if line is not None and (line in self._moved or self._is_shut(line)):
            return True
        own = self._own_limit(job.turn)
        if own and room.is_full(own[0]):
            return True  # the whole queue waits where it is
        limits = job.limits if line is None else self._lines[line].limits
        uses = () if limits is None else uses_of(limits)
        full = room.first_full(uses)
        if full is not None:
            self._keep_back(job, line, full)
        elif (uses or own) and self._slots <= 0:
            if uses and line is None:
                self.parked.append(Parked(job, uses[0], is_open=True))
        elif self._tokens[len(self.picks)] in (job.spent or ()):
            return False
        else:
            room.take(uses + own)
            self._slots -= bool(uses or own)
            self.picks.append(Pick(job, uses))
            if line is not None:
                self._done[line] += 1
        return True

    def _are_queues_full(self) -> bool:
        """Each of them, by a limit of its own."""
        own = [self._own_limit(turn) for turn in range(1, len(self._queues) + 1)]
        return all(limit and self._room.is_full(limit[0]) for limit in own)

    def _own_limit(self, turn: int) -> tuple[LimitKey, ...]:
        """Return the queue's own limit, if it has one."""
        name = QUEUE_LIMIT + self._queues[turn - 1]
        return ((name, NO_KEY),) if name in self._room.terms else ()

    def _is_shut(self, line: tuple[int, str]) -> bool:
        return self._gate_of(line) in self._shut

    def _keep_back(self, job: Candidate, line: tuple[int, str] | None, full: LimitKey) -> None:
        if line is None:
            self.parked.append(Parked(job, full, is_open=False))
            return
        one = self._lines[line]
        if full == (one.name, one.key):
            self._shut.add((job.turn, full))
        else:
            self._moved[line] = full

    # What happened to lines and gates

    def _chosen(self, has_more: bool, is_stopped: bool) -> Chosen:
        # A line or a gate keeps the key of the first job behind it, so that claims find it in their order. A key that
        # is too early costs a look; one that is too late would hide a job. So where something may not be loaded, the
        # key of the last that is loaded stands for what follows it.
        lines_gone: list[OpenLine] = []
        lines_left: list[tuple[OpenLine, LimitKey, WalkKey]] = []
        remaining = defaultdict[tuple[int, LimitKey], list[WalkKey]](list)
        counts = defaultdict[tuple[int, LimitKey], int](int)
        for key, line in self._lines.items():
            jobs, gate = self._jobs.get(key, []), (line.name, line.key)
            counts[line.turn, gate] += 1
            left = jobs[self._done.get(key, 0) :]
            if not left and not self._may_have_more_jobs(key):
                lines_gone.append(line)
                continue
            place = left[0].key if left else jobs[-1].key
            at = self._moved.get(key, gate)
            if place != _key_of(line) or at != gate:
                lines_left.append((line, at, place))
            if at == gate:
                remaining[line.turn, gate].append(place)
        gates_gone: list[OpenGate] = []
        gates_left: list[GateLeft] = []
        for one in self._loaded.gates or ():
            key_of = (one.turn, (one.name, one.key))
            places, is_all = remaining[key_of], not self._may_have_more_lines(key_of, counts[key_of])
            if not places and is_all:
                gates_gone.append(one)
                continue
            if not is_all:  # those that are not loaded stand behind the last one that is
                places = [*places, self._last_line(key_of)]
            is_open = not self._room.is_full(key_of[1])
            if is_open and min(places) == _key_of(one):
                continue
            gates_left.append(GateLeft(one, min(places), is_open))
        return Chosen(self.picks, self.parked, lines_gone, lines_left, gates_gone, gates_left, has_more, is_stopped)

    def _last_line(self, gate: tuple[int, LimitKey]) -> WalkKey:
        return max(_key_of(line) for line in self._lines.values() if (line.turn, (line.name, line.key)) == gate)


def _key(job: Candidate) -> WalkKey:
    return job.key


def _key_of(one: Any) -> WalkKey:
    return one.turn, one.rank, one.available_at, one.seq
