"""claim, from queues with limits: in one transaction under the locks of those limits, in two round trips or more.

Lock, open and load are sent together, and so are what was chosen and COMMIT. While more is to be looked at, what was
chosen so far is written and the next part is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leasemill.kernel import commands as c
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.limits.choose import Chosen, LimitWalk, Parked, Room, Window
from leasemill.store.postgres.limits.snapshot import LimitKey, LimitSnapshot, WalkKey, line_id, uses_of
from leasemill.store.postgres.positions import ScanKey
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, RetryTransaction, Row, Steps, send

MORE: Final = 10
"""So many jobs beyond those wanted are loaded at first."""
MOST: Final = 5_000
NO_TOKEN: Final = "-"
PARKED_AT_ONCE: Final = 10_000
"""So many jobs are parked before the limits are unlocked for others."""

_loaded = msgspec.json.Decoder(LimitSnapshot).decode
_encode = msgspec.json.Encoder().encode


class LimitClaim(NamedTuple):
    """The result of a claim under limits."""

    rows: list[Row]
    """As grant_chosen.sql returns them."""
    now: int
    is_repeated: bool = False
    """Nothing was looked for: the request has leases."""
    has_arrived: bool = False
    has_expired: bool = False
    taken: Sequence[tuple[str, int, int, int]] = ()
    """The places in ready from which jobs were taken."""
    is_unfinished: bool = False
    """Much was parked, and there may be more to grant."""
    may_grant: bool = False
    """Something can be granted, and nothing was to be."""


def may_grant(known: Known, queues: tuple[str, ...]) -> Steps[bool]:
    """Whether a claim from queues with limits would be granted anything, asked without claiming. Jobs that it finds
    behind full limits are parked, as a claim does, so that no later one looks at them again."""
    given: dict[str, Any] = {"request_id": None, "request_key": None, "waits": False, "tokens": []}
    command = c.Claim("", queues, 1, [NO_TOKEN])
    looked = yield from Limited(known, command, given, 0).steps(grants=False)
    return looked.may_grant or looked.is_unfinished


class Limited:
    """One claim. `given`: the parameters it shares with claim.sql, and whether it `waits` for an earlier attempt."""

    def __init__(self, known: Known, command: c.Claim, given: dict[str, Any], expired_from: int) -> None:
        self._known = known
        self._command = command
        self._given = given
        self._queues = list(dict.fromkeys(command.queues))
        self._expired_from = expired_from
        self._names = known.limit_names(self._queues)
        self._slots = command.limit if command.slots is None else command.slots
        self._rows: list[Row] = []
        self._parked = 0
        self._taken: list[ScanKey] = []

    def steps(self, *, grants: bool = True) -> Steps[LimitClaim]:
        """`grants`: False to find out whether anything can be granted.

        Locks the limits of all these queues, in one order for all callers, before it reads anything: from then on no
        other claim takes a place of them. Which names those are is known from the claim before; if it is no longer so,
        the claim begins again with the names that were found.
        """
        left = self._command.limit
        window = _window(left, left + MORE, self._slots)
        _, ((names, _),), _, ((document,),) = yield from send(
            BEGIN,
            self._call("lock_limits", queues=self._queues),
            self._call("open_gates", queues=self._queues, names=self._names),
            self._load(window),
        )
        if set(names or ()) != set(self._names):
            self._known.learn_limit_names(self._queues, names or ())
            raise RetryTransaction("jobs name limits that were not known")
        loaded = _loaded(document)
        if loaded.is_repeated:
            yield from send(COMMIT)
            return LimitClaim([], loaded.now, is_repeated=True)
        return (yield from self._walk(loaded, window, grants=grants))

    def _walk(self, loaded: LimitSnapshot, window: Window, *, grants: bool) -> Steps[LimitClaim]:
        """Choose from what is loaded, write it, and load more until the claim is full or there is no more to look at.
        What was written stays in the transaction: the next part is loaded behind it."""
        # Every round loads, chooses and writes in one transaction, under the locks of the limits. What a round wrote,
        # the next one sees: granted jobs have left `ready`, parked ones stand in their lines, so nothing is looked at
        # twice.
        while True:
            room = Room(loaded)
            self._check_names(loaded)
            tokens = self._command.tokens[len(self._rows) : self._command.limit]
            walk = LimitWalk(loaded, room, self._queues, tokens if grants else tokens[:1], self._slots, window)
            chosen = walk.go()
            self._slots = walk.slots
            may_grant = bool(chosen.picks) and not grants
            self._parked += len(chosen.parked)
            self._take_note(chosen)
            is_last = may_grant or not chosen.has_more or self._parked >= PARKED_AT_ONCE
            writes = list(self._writes(chosen, room, grants=grants))
            left = self._command.limit - len(self._rows) - len(chosen.picks)
            window = _window(left, min(4 * window.ready, MOST), self._slots)
            answers = yield from send(*writes, COMMIT if is_last else self._load(window))
            self._keep(answers, writes)
            if is_last:
                return LimitClaim(
                    self._rows,
                    loaded.now,
                    has_arrived=loaded.has_arrived,
                    has_expired=loaded.has_expired and not self._rows,
                    taken=self._taken,
                    is_unfinished=chosen.has_more and not may_grant,
                    may_grant=may_grant,
                )
            loaded = _loaded(answers[-1][0][0])

    def _take_note(self, chosen: Chosen) -> None:
        for job in (*(pick.job for pick in chosen.picks), *(parked.job for parked in chosen.parked)):
            if job.line is None:
                self._taken.append((self._queues[job.turn - 1], job.rank, job.available_at, job.seq))

    def _check_names(self, loaded: LimitSnapshot) -> None:
        locked = set(self._names)
        found = (job.limits for job in loaded.candidates or () if job.limits is not None)
        if not all(name in locked for limits in found for name, _ in uses_of(limits)):
            raise RetryTransaction("a job names a limit that was not locked")

    def _keep(self, answers: Sequence[list[Row]], writes: Sequence[Execute]) -> None:
        for call, rows in zip(writes, answers, strict=False):
            if call.statement == "grant_chosen":
                self._rows += rows

    # Statements

    def _call(self, name: str, **given: Any) -> Execute:
        return Execute(name, {**self._given, **given})

    def _load(self, window: Window) -> Execute:
        return self._call(
            "load_limited",
            queues=self._queues,
            names=self._names,
            window=window.ready,
            gates=window.gates,
            lines=window.lines,
            jobs=window.jobs,
            has_slots=self._slots > 0,
            expired_from=self._expired_from,
        )

    def _writes(self, chosen: Chosen, room: Room, *, grants: bool) -> Iterator[Execute]:
        if chosen.picks and grants:
            yield self._grant(chosen)
            if room.charged:
                rates = [
                    {"name": name, "key": key, "tat": charge.tat, "used": charge.used_us}
                    for (name, key), charge in room.charged.items()
                ]
                yield self._call("charge_rates", rates=_json(rates))
        if not grants and chosen.picks:
            chosen = chosen._replace(lines_gone=[], lines_left=[], gates_gone=[], gates_left=[])
        moved = [(line, gate, place) for line, gate, place in chosen.lines_left if gate != (line.name, line.key)]
        if chosen.lines_gone or chosen.lines_left or chosen.gates_gone or chosen.gates_left:
            yield self._leave(chosen, room)
        if chosen.parked or moved:
            yield self._park(chosen.parked, moved, room)

    def _grant(self, chosen: Chosen) -> Execute:
        jobs, first = [pick.job for pick in chosen.picks], len(self._rows)
        places = [(number, use) for number, pick in enumerate(chosen.picks, 1) for use in pick.uses]
        return self._call(
            "grant_chosen",
            queues=[self._queues[job.turn - 1] for job in jobs],
            ranks=[job.rank for job in jobs],
            ats=[job.available_at for job in jobs],
            seqs=[job.seq for job in jobs],
            lines=[job.line for job in jobs],
            tokens=list(self._command.tokens[first : first + len(jobs)]),
            claimed=self._queues,
            names=self._names,
            place_numbers=[number for number, _ in places],
            place_names=[name for _, (name, _) in places],
            place_keys=[key for _, (_, key) in places],
        )

    def _leave(self, chosen: Chosen, room: Room) -> Execute:
        gates_left = [
            {
                **self._gate(left.gate.turn, (left.gate.name, left.gate.key), left.place),
                "is_open": left.is_open,
                "opens_at": room.opens_at((left.gate.name, left.gate.key)),
            }
            for left in chosen.gates_left
        ]
        return self._call(
            "leave_lines",
            lines_gone=_json([{"queue": self._queues[line.turn - 1], "id": line.id} for line in chosen.lines_gone]),
            lines_left=_json(
                [{"id": line.id, **self._gate(line.turn, gate, place)} for line, gate, place in chosen.lines_left]
            ),
            gates_gone=_json([self._gate(gate.turn, (gate.name, gate.key)) for gate in chosen.gates_gone]),
            gates_left=_json(gates_left),
        )

    def _park(self, parked: list[Parked], moved: list[tuple[Any, LimitKey, WalkKey]], room: Room) -> Execute:
        jobs: list[dict[str, Any]] = []
        lines: dict[tuple[int, str], dict[str, Any]] = {}
        gates: dict[LimitKey, dict[str, Any]] = {}
        for job, gate, is_open in parked:  # in order: the first of a line is its first
            assert job.limits is not None
            one = line_id(job.limits)
            jobs.append({**self._place(job.key), "line": one})
            if (job.turn, one) not in lines:
                lines[job.turn, one] = {"id": one, "limits": job.limits, **self._gate(job.turn, gate, job.key)}
            gates[gate] = self._key(gate, is_open=is_open, opens_at=None if is_open else room.opens_at(gate))
        for _, gate, _ in moved:
            gates[gate] = self._key(gate, is_open=False, opens_at=room.opens_at(gate))
        return self._call(
            "park",
            jobs=_json(jobs),
            lines=_json(list(lines.values())),
            lines_moved=_json([self._gate(line.turn, gate, place) for line, gate, place in moved]),
            gates=_json(list(gates.values())),
        )

    def _place(self, place: WalkKey) -> dict[str, Any]:
        turn, rank, available_at, seq = place
        return {"queue": self._queues[turn - 1], "rank": rank, "available_at": available_at, "seq": seq}

    def _gate(self, turn: int, gate: LimitKey, place: WalkKey | None = None) -> dict[str, Any]:
        at = {"queue": self._queues[turn - 1]} if place is None else self._place(place)
        return {**at, **self._key(gate)}

    def _key(self, gate: LimitKey, **others: Any) -> dict[str, Any]:
        return {"name": gate[0], "key": gate[1], **others}


def _window(left: int, ready: int, slots: int) -> Window:
    return Window(ready, min(left, 50) if slots > 0 else 0, min(left, 20), min(left, 50))


def _json(rows: list[dict[str, Any]]) -> str:
    return _encode(rows).decode()
