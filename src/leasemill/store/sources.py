"""Where a store's time and randomness come from. The only place that asks the machine for either."""

from __future__ import annotations

import os
import random
import time
from base64 import urlsafe_b64encode
from typing import Final, Protocol

import uuid_utils

NANOSECONDS_PER_MICROSECOND: Final = 1_000
TOKEN_BYTES: Final = 15  # 120 bits; a multiple of three, so that base64 fills whole characters
TOKEN_CHARACTERS: Final = 20


class Clock(Protocol):
    """The store's time, in microseconds since the Unix epoch."""

    def now(self) -> int: ...


class SteadyClock:
    """Wall time as it was when the clock was made, advanced by the monotonic clock: never stepped (L8)."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // NANOSECONDS_PER_MICROSECOND


class WallClock:
    """What the machine's clock shows: it may be stepped, or wrong. No store decides by it."""

    def now(self) -> int:
        return time.time_ns() // NANOSECONDS_PER_MICROSECOND


class Entropy(Protocol):
    """Ids, tokens and jitter."""

    def new_id(self) -> str: ...

    def tokens(self, count: int) -> list[str]: ...

    def jitter(self) -> float: ...


class SystemEntropy:
    """The operating system's randomness for tokens, UUIDv7 for ids."""

    def new_id(self) -> str:
        return str(uuid_utils.uuid7())

    def tokens(self, count: int) -> list[str]:
        drawn = urlsafe_b64encode(os.urandom(TOKEN_BYTES * count)).decode()
        return [drawn[start : start + TOKEN_CHARACTERS] for start in range(0, len(drawn), TOKEN_CHARACTERS)]

    def jitter(self) -> float:
        return random.random()
