"""claim, from queues with limits: in one transaction under the locks of those limits, in two round trips or more.

Lock, open and load are sent together, and so are what was chosen and COMMIT. While more is to be looked at, what was
chosen so far is written and the next part is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.limits.choose import (
    Chosen,
    LimitKey,
    LimitWalk,
    Parked,
    Place,
    Room,
    Standing,
    Window,
    line_id,
    uses_of,
)
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Moved, Row

MORE: Final = 10
"""So many jobs beyond those wanted are loaded at first."""
MOST: Final = 5_000
PARKED_AT_ONCE: Final = 10_000
"""So many jobs are parked before the limits are unlocked for others."""

_loaded = msgspec.json.Decoder(Standing).decode
_encode = msgspec.json.Encoder().encode


class LimitClaim(NamedTuple):
    """What a claim under limits came to."""

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


class Limited:
    """One claim. `given`: the parameters it shares with claim.sql."""

    def __init__(
        self, database: Database, connection: Connection, command: c.Claim, given: dict[str, Any], expired_from: int
    ) -> None:
        self._database = database
        self._connection = connection
        self._command = command
        self._given = given
        self._queues = list(dict.fromkeys(command.queues))
        self._expired_from = expired_from
        self._names = database.limit_names(self._queues)
        self._slots = command.limit if command.slots is None else command.slots
        self._rows: list[Row] = []
        self._parked = 0
        self._taken: list[tuple[str, int, int, int]] = []

    def run(self, *, grants: bool = True) -> LimitClaim:
        """`grants`: False to find out whether anything can be granted."""
        left = self._command.limit
        window = _window(left, left + MORE, self._slots)
        with batch.transaction(self._connection):
            _, ((names, _),), _, ((document,),) = batch.run(
                self._connection,
                batch.BEGIN,
                self._sent("lock_limits", queues=texts(self._queues)),
                self._sent("open_gates", queues=texts(self._queues), names=texts(self._names)),
                self._load(window),
            )
            if set(names or ()) != set(self._names):
                self._database.learn_limit_names(self._queues, names or ())
                raise Moved("jobs name limits that were not known")
            loaded = _loaded(document)
            if loaded.is_repeated:
                batch.run(self._connection, batch.COMMIT)
                return LimitClaim([], loaded.now, is_repeated=True)
            return self._walk(loaded, window, grants=grants)

    def _walk(self, loaded: Standing, window: Window, *, grants: bool) -> LimitClaim:
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
            if is_last:
                self._keep(batch.run(self._connection, *(sent for _, sent in writes), batch.COMMIT), writes)
                return LimitClaim(
                    self._rows,
                    loaded.now,
                    has_arrived=loaded.has_arrived,
                    has_expired=loaded.has_expired and not self._rows,
                    taken=self._taken,
                    is_unfinished=chosen.has_more and not may_grant,
                    may_grant=may_grant,
                )
            left = self._command.limit - len(self._rows) - len(chosen.picks)
            window = _window(left, min(4 * window.ready, MOST), self._slots)
            results = batch.run(self._connection, *(sent for _, sent in writes), self._load(window))
            self._keep(results, writes)
            loaded = _loaded(results[-1][0][0])

    def _take_note(self, chosen: Chosen) -> None:
        for job in (*(pick.job for pick in chosen.picks), *(parked.job for parked in chosen.parked)):
            if job.line is None:
                self._taken.append((self._queues[job.turn - 1], job.rank, job.available_at, job.seq))

    def _check_names(self, loaded: Standing) -> None:
        locked = set(self._names)
        found = (job.limits for job in loaded.candidates or () if job.limits is not None)
        if not all(name in locked for limits in found for name, _ in uses_of(limits)):
            raise Moved("a job names a limit that was not locked")

    def _keep(self, results: Sequence[list[Row]], writes: Sequence[tuple[str, Any]]) -> None:
        for (name, _), rows in zip(writes, results, strict=False):
            if name == "grant_chosen":
                self._rows += rows

    # Statements

    def _sent(self, name: str, **given: Any) -> batch.Sent:
        return self._database.sent(name, {**self._given, **given})

    def _load(self, window: Window) -> batch.Sent:
        return self._sent(
            "load_limited",
            queues=texts(self._queues),
            names=texts(self._names),
            window=int8(window.ready),
            gates=int8(window.gates),
            lines=int8(window.lines),
            jobs=int8(window.jobs),
            has_slots=self._slots > 0,
            expired_from=int8(self._expired_from),
        )

    def _writes(self, chosen: Chosen, room: Room, *, grants: bool) -> Iterator[tuple[str, batch.Sent]]:
        if chosen.picks and grants:
            yield "grant_chosen", self._grant(chosen)
            if room.charged:
                rates = [
                    {"name": name, "key": key, "tat": charge.tat, "used": charge.used_us}
                    for (name, key), charge in room.charged.items()
                ]
                yield "charge_rates", self._sent("charge_rates", rates=_json(rates))
        if not grants and chosen.picks:
            chosen = chosen._replace(lines_gone=[], lines_left=[], gates_gone=[], gates_left=[])
        moved = [(line, gate, place) for line, gate, place in chosen.lines_left if gate != (line.name, line.key)]
        if chosen.lines_gone or chosen.lines_left or chosen.gates_gone or chosen.gates_left:
            yield "leave_lines", self._leave(chosen, room)
        if chosen.parked or moved:
            yield "park", self._park(chosen.parked, moved, room)

    def _grant(self, chosen: Chosen) -> batch.Sent:
        jobs, first = [pick.job for pick in chosen.picks], len(self._rows)
        places = [(number, use) for number, pick in enumerate(chosen.picks, 1) for use in pick.uses]
        return self._sent(
            "grant_chosen",
            queues=texts([self._queues[job.turn - 1] for job in jobs]),
            ranks=int8s([job.rank for job in jobs]),
            ats=int8s([job.available_at for job in jobs]),
            seqs=int8s([job.seq for job in jobs]),
            lines=texts([job.line for job in jobs]),
            tokens=texts(self._command.tokens[first : first + len(jobs)]),
            claimed=texts(self._queues),
            names=texts(self._names),
            place_numbers=int8s([number for number, _ in places]),
            place_names=texts([name for _, (name, _) in places]),
            place_keys=texts([key for _, (_, key) in places]),
        )

    def _leave(self, chosen: Chosen, room: Room) -> batch.Sent:
        gates_left = [
            {
                **self._gate(left.gate.turn, (left.gate.name, left.gate.key), left.place),
                "is_open": left.is_open,
                "opens_at": room.opens_at((left.gate.name, left.gate.key)),
            }
            for left in chosen.gates_left
        ]
        return self._sent(
            "leave_lines",
            lines_gone=_json([{"queue": self._queues[line.turn - 1], "id": line.id} for line in chosen.lines_gone]),
            lines_left=_json(
                [{"id": line.id, **self._gate(line.turn, gate, place)} for line, gate, place in chosen.lines_left]
            ),
            gates_gone=_json([self._gate(gate.turn, (gate.name, gate.key)) for gate in chosen.gates_gone]),
            gates_left=_json(gates_left),
        )

    def _park(self, parked: list[Parked], moved: list[tuple[Any, LimitKey, Place]], room: Room) -> batch.Sent:
        jobs: list[dict[str, Any]] = []
        lines: dict[tuple[int, str], dict[str, Any]] = {}
        gates: dict[LimitKey, dict[str, Any]] = {}
        for job, gate, is_open in parked:  # in order: the first of a line is its first
            assert job.limits is not None
            one = line_id(job.limits)
            jobs.append({**self._place(job.place), "line": one})
            if (job.turn, one) not in lines:
                lines[job.turn, one] = {"id": one, "limits": job.limits, **self._gate(job.turn, gate, job.place)}
            gates[gate] = self._key(gate, is_open=is_open, opens_at=None if is_open else room.opens_at(gate))
        for _, gate, _ in moved:
            gates[gate] = self._key(gate, is_open=False, opens_at=room.opens_at(gate))
        return self._sent(
            "park",
            jobs=_json(jobs),
            lines=_json(list(lines.values())),
            lines_moved=_json([self._gate(line.turn, gate, place) for line, gate, place in moved]),
            gates=_json(list(gates.values())),
        )

    def _place(self, place: Place) -> dict[str, Any]:
        turn, rank, available_at, seq = place
        return {"queue": self._queues[turn - 1], "rank": rank, "available_at": available_at, "seq": seq}

    def _gate(self, turn: int, gate: LimitKey, place: Place | None = None) -> dict[str, Any]:
        at = {"queue": self._queues[turn - 1]} if place is None else self._place(place)
        return {**at, **self._key(gate)}

    def _key(self, gate: LimitKey, **others: Any) -> dict[str, Any]:
        return {"name": gate[0], "key": gate[1], **others}


def _window(left: int, ready: int, slots: int) -> Window:
    return Window(ready, min(left, 50) if slots > 0 else 0, min(left, 20), min(left, 50))


def _json(rows: list[dict[str, Any]]) -> str:
    return _encode(rows).decode()
