"""The limits of a server: how much a client may ask for at a time, decided before a body is read.

Requests without a key have no limit but that of bodies: where keys are needed they are refused, and where they are not,
every program of the machine is trusted. Wrong keys are not counted: 256 bits are not guessed, and a client that shares
an address with an attacker must not be refused for it.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus

from msgspec import Struct

from leasemill.server.authorizer import BODY_BYTES, BODY_S
from leasemill.store.access_keys import KEYS_KEPT
from leasemill.wire.problems import Denied, Problem


class ServerLimits(Struct, frozen=True, kw_only=True):
    """The limits of a server; `leasemill serve --help` has those that can be changed."""

    requests_per_s: float = 5_000
    burst: int = 10_000
    """Requests of one key: the rate in the long run, and how many at once."""
    open_requests: int = 4_000
    open_polls: int = 3_000
    """Requests of one key that are not answered yet, and how many of them may be such that wait."""
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S
    bodies_bytes: int = 4 * BODY_BYTES
    """The bytes of all bodies that are being read or carried out."""


class Bucket:
    """A token bucket: `rate` tokens a second, at most `burst` of them."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at = now

    def take(self, now: float) -> float:
        """0: there was one. Else the seconds after which there is one, and none was taken."""
        self._fill(now)
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now


class Meter:
    """Counts what each client has asked for lately, and has open."""

    def __init__(self, limits: ServerLimits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._open: dict[str, int] = {}
        self._polls: dict[str, int] = {}
        self._bytes = 0

    def enter(self, who: str | None, *, is_poll: bool, body_bytes: int) -> None:
        """Begin a request of a client, which `leave` ends. None: a client without a key."""
        limits = self._limits
        if self._bytes + body_bytes > limits.bodies_bytes:
            raise _busy()
        if who is not None:
            self._enter(who, is_poll, limits)
        self._bytes += body_bytes

    def _enter(self, who: str, is_poll: bool, limits: ServerLimits) -> None:
        if self._open.get(who, 0) >= limits.open_requests:
            raise too_many(f"{who} has {limits.open_requests:,} requests open", 1.0, limits.open_requests)
        if is_poll and self._polls.get(who, 0) >= limits.open_polls:
            raise too_many(f"{who} has {limits.open_polls:,} requests open that wait", 1.0, limits.open_polls)
        wait_s = self._bucket(who).take(self._monotonic())
        if wait_s:
            raise too_many(f"{who} sends more than {limits.requests_per_s:g} requests a second", wait_s, limits.burst)
        self._open[who] = self._open.get(who, 0) + 1
        if is_poll:
            self._polls[who] = self._polls.get(who, 0) + 1

    def leave(self, who: str | None, *, is_poll: bool, body_bytes: int) -> None:
        self._bytes -= body_bytes
        if who is not None:
            _less(self._open, who)
            if is_poll:
                _less(self._polls, who)

    def _bucket(self, who: str) -> Bucket:
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._buckets[who] = Bucket(self._limits.requests_per_s, self._limits.burst, self._monotonic())
            if len(self._buckets) > KEYS_KEPT:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(who)
        return bucket


def _less(counts: dict[str, int], who: str) -> None:
    left = counts[who] - 1
    if left:
        counts[who] = left
    else:
        del counts[who]


def too_many(detail: str, wait_s: float, limit: float) -> Denied:
    status = HTTPStatus.TOO_MANY_REQUESTS
    shown = Problem(status.value, status.phrase, "too_many", f"{detail}: try again later", limit=f"{limit:g}")
    return Denied(shown, (("retry-after", str(max(1, math.ceil(wait_s)))),))


def _busy() -> Denied:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    shown = Problem(status.value, status.phrase, "unavailable", "too many large bodies at once: try again")
    return Denied(shown, (("retry-after", "1"),))
