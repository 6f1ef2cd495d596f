"""What the verbs of one store share: its statements, its time, what it knows of queues, and how far claims got."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from leasemill.store.expiries import Expiries
from leasemill.store.postgres.rows import Row
from leasemill.store.postgres.wire.arrays import Int8Array, TextArray, int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection
from leasemill.store.postgres.wire.cursors import AsyncPlainCursor, PlainCursor
from leasemill.store.postgres.wire.statements import Statements
from leasemill.store.sources import Clock

AnswerT = TypeVar("AnswerT")
Steps: TypeAlias = Generator[tuple[str, Mapping[str, Any]], list[Row], AnswerT]
"""Statements by name, each answered with its rows before the next: the same on any kind of connection."""

RANKS: Final = 10
RUN_CANCELLED: Final = "!cancelled"
"""What the channel of new jobs carries when a running job was cancelled: no queue has such a name."""
NUMBERS_KEPT: Final = 100_000
LOOK_AGAIN_S: Final = 1.0
EXPIRY_SLACK_US: Final = 120_000_000
FULL_LOOK_S: Final = 10.0


class Positions:
    """Where claims got to, per queue and rank, so that dead entries at the head of the index cost nothing.

    Best effort by nature: from the start at least every second, when nothing was found, and where this store itself
    put a job behind the position.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached: dict[tuple[str, int], tuple[int, int]] = {}
        self._from_start_at_s = -LOOK_AGAIN_S

    def places(self, queues: Sequence[str]) -> tuple[dict[str, TextArray | Int8Array], bool]:
        """The parameters of a claim: every queue and rank, and from where to look; whether that is the start."""
        at_s = time.monotonic()
        with self._lock:
            if at_s - self._from_start_at_s >= LOOK_AGAIN_S:
                self._reached.clear()
                self._from_start_at_s = at_s
            reached = [self._reached.get((queue, rank), (0, 0)) for queue in queues for rank in range(RANKS)]
            is_start = not any(at for at, _ in reached)
        return {
            "queues": texts([queue for queue in queues for _ in range(RANKS)]),
            "ranks": int8s([rank for _ in queues for rank in range(RANKS)]),
            "from_ats": int8s([at for at, _ in reached]),
            "from_seqs": int8s([seq for _, seq in reached]),
        }, is_start

    def advance(self, places: Iterable[tuple[str, int, int, int]]) -> None:
        with self._lock:
            for queue, rank, at, seq in places:
                self._reached[queue, rank] = (at, seq)

    def lower(self, places: Iterable[tuple[str, int, int, int]]) -> None:
        """A job was put at this place: look there again."""
        with self._lock:
            for queue, rank, at, seq in places:
                if (at, seq) < self._reached.get((queue, rank), (0, 0)):
                    self._reached[queue, rank] = (at, seq)

    def forget(self) -> None:
        with self._lock:
            self._reached.clear()


class Database:
    """One store's side of the conversation."""

    def __init__(self, statements: Statements, clock: Clock | None, expiries: Expiries) -> None:
        self.statements = statements
        self.expiries = expiries
        self.clock = clock
        self.positions = Positions()
        self.claim_queues: set[str] = set()
        self.numbers: dict[str, tuple[str, int]] = {}
        self.channel = f"leasemill_{statements.schema}"
        self.admission_key = advisory_key(f"leasemill admission {statements.schema}")
        self.retention_key = advisory_key(f"leasemill retention {statements.schema}")
        self._looked_fully_at_s = -FULL_LOOK_S
        self._looked_until = 0

    def remember(self, leases: Iterable[tuple[str, str, int]]) -> None:
        """Tokens, their jobs and the jobs' numbers, so that reports need not ask for them."""
        if len(self.numbers) > NUMBERS_KEPT:
            self.numbers = {}
        self.numbers.update((token, (job_id, no)) for token, job_id, no in leases)

    def now(self) -> int | None:
        return None if self.clock is None else self.clock.now()

    def all(self, connection: psycopg.Connection[Any], name: str, given: Mapping[str, Any]) -> list[Row]:
        with PlainCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(*self.sent(name, given), binary=True)
            return cursor.fetchall()

    def do(self, connection: Connection, name: str, given: Mapping[str, Any]) -> None:
        with PlainCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(*self.sent(name, given), binary=True)

    def one(self, connection: Connection, name: str, given: Mapping[str, Any]) -> Row:
        (row,) = self.all(connection, name, given)
        return row

    def sent(self, name: str, given: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """A statement and its parameters."""
        statement = self.statements[name]
        return statement.text, statement.values({"now": int8(self.now()), **given})

    def follow(self, connection: psycopg.Connection[Any], steps: Steps[AnswerT]) -> AnswerT:
        """Carry out statements in whatever transaction the connection is in; it may be a user's."""
        try:
            name, given = next(steps)
            while True:
                name, given = steps.send(self.all(connection, name, given))
        except StopIteration as end:
            answer: AnswerT = end.value
            return answer

    async def afollow(self, connection: psycopg.AsyncConnection[Any], steps: Steps[AnswerT]) -> AnswerT:
        """`follow` in async code."""
        async with AsyncPlainCursor(connection, row_factory=tuple_row) as cursor:
            try:
                name, given = next(steps)
                while True:
                    await cursor.execute(*self.sent(name, given), binary=True)
                    name, given = steps.send(await cursor.fetchall())
            except StopIteration as end:
                answer: AnswerT = end.value
                return answer

    def look_from(self) -> int:
        """From which expiry on to look: what ended long ago was found then, but for a full look now and then."""
        if time.monotonic() - self._looked_fully_at_s >= FULL_LOOK_S:
            return 0
        return max(0, self._looked_until - EXPIRY_SLACK_US)

    def looked(self, from_at: int, until: int) -> None:
        """All that had expired by then, on the store's clock, is known."""
        self._looked_until = until
        if from_at == 0:
            self._looked_fully_at_s = time.monotonic()


def advisory_key(text: str) -> int:
    """A lock's number from its name: the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
