"""The document of load_limited.sql: jobs, gates, lines and use of limits, read under the locks of the limits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from leasemill.kernel.model import LimitTerms, LimitUse

NO_KEY: Final = ""
"""The key, in tables, of a limit that is named without one."""
WalkKey = tuple[int, int, int, int]
"""A job by the order of a claim: the queue's turn, rank, available_at, seq."""
LimitKey = tuple[str, str]
LAST: Final[WalkKey] = (2**62, 0, 0, 0)


class Candidate(Struct, frozen=True, array_like=True, gc=False):
    """A job that may be granted. `limits` are those of its line, if it stands in one. `spent`: tokens it has had."""

    turn: int
    rank: int
    available_at: int
    seq: int
    limits: str | None
    line: str | None
    spent: list[str] | None

    @property
    def key(self) -> WalkKey:
        return self.turn, self.rank, self.available_at, self.seq


class OpenGate(Struct, frozen=True, array_like=True, gc=False):
    """No job behind it stands before its place. `room`: no more of its lines, and of the jobs in each, were loaded;
    None: as many as the window has."""

    turn: int
    rank: int
    available_at: int
    seq: int
    name: str
    key: str
    room: int | None


class OpenLine(Struct, frozen=True, array_like=True, gc=False):
    """One at an open gate; no job in it stands before its place."""

    turn: int
    rank: int
    available_at: int
    seq: int
    id: str
    limits: str
    name: str
    key: str


class LimitState(Struct, frozen=True, array_like=True, gc=False):
    name: str
    key: str
    held: int
    tat: int


class KnownTerms(Struct, frozen=True, array_like=True, gc=False):
    name: str
    declared: list[int | None] | None
    set_terms: list[int | None] | None


class LimitSnapshot(Struct, gc=False):
    """The document that load_limited.sql returns."""

    now: int
    is_repeated: bool
    has_arrived: bool
    has_expired: bool
    candidates: list[Candidate] | None
    gates: list[OpenGate] | None
    lines: list[OpenLine] | None
    terms: list[KnownTerms] | None
    uses: list[LimitState] | None


_uses = msgspec.json.Decoder(list[LimitUse]).decode


@lru_cache(4096)
def uses_of(limits: str) -> tuple[LimitKey, ...]:
    return tuple((use.name, use.key or NO_KEY) for use in _uses(limits))


@lru_cache(4096)
def line_id(limits: str) -> str:
    """The line of the jobs with these limits: the same in every process."""
    return str(UUID(bytes=blake2b(limits.encode(), digest_size=16).digest()))


def terms_of_row(numbers: Sequence[int | None] | None) -> LimitTerms | None:
    return None if numbers is None else LimitTerms(*numbers)
