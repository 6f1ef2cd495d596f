"""What a store gets from the machine it runs on: time, randomness, and the error when no more files may be opened.

No other module of a store asks the machine for time or randomness.
"""

from __future__ import annotations

import errno
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
    """The machine's clock, which may be stepped or wrong. No store decides by it."""

    def now(self) -> int:
        return time.time_ns() // NANOSECONDS_PER_MICROSECOND


class Entropy(Protocol):
    """The source of ids, tokens and jitter."""

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


def out_of_descriptors(error: BaseException | None) -> str | None:
    """Return a sentence if this error, or one that it followed from, is the system's refusal to open another file."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            return (
                f"too many open files: this process may have {_limit()} open (ulimit -n); allow more, for example with "
                "ulimit -n 1024, LimitNOFILE= in a systemd unit or --ulimit nofile of a container, then start it again"
            )
        if isinstance(error, OSError) and error.errno == errno.ENFILE:
            return (
                "too many open files on this machine: raise its limit (sysctl fs.file-max), or end processes that have "
                "many files open, then start it again"
            )
        error = error.__cause__ or error.__context__
    return None


def _limit() -> str:
    try:
        import resource  # Windows has none
    except ImportError:
        return "no more"
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"
