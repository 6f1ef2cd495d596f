"""Which calls to a server are repeated, after how long, and what their answers mean. The caller sends and sleeps.

A command is sent again only where that is safe: it was never sent, or it has the same effect when it is carried out
twice. Otherwise, and when the server stays unreachable, it raises Unavailable: it is unknown whether it happened.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from leasemill.errors import Refused, Unavailable
from leasemill.store.backoff import backoff_s
from leasemill.wire.codec import decode_answer
from leasemill.wire.problems import Problem, error_of, read_problem
from leasemill.wire.routes import Route

PATIENCE_S: Final = 5.0
"""The longest wait for a server that restarts."""
AWAY: Final = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}


class CallFailed(Exception):
    """No answer came. `was_sent`: the server may have got the request, or a part of it."""

    def __init__(self, error: Exception, *, was_sent: bool) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.was_sent = was_sent


class Answered(NamedTuple):
    """`problem`: None for an answer, and for what no Leasemill server wrote."""

    status: int
    problem: Problem | None
    body: bytes | bytearray
    retry_after_s: float = 0.0
    """The time for which the server asks to be left alone."""


def answered_by(status: int, headers: Mapping[str, str], body: bytes | bytearray) -> Answered:
    if status == HTTPStatus.OK:
        return Answered(status, None, body)
    found, retry_after = read_problem(headers.get("content-type", ""), body), headers.get("retry-after", "")
    return Answered(status, found, body, float(retry_after) if retry_after.isdecimal() else 0.0)


def has_answer(answered: Answered) -> bool:
    """The command's: as it is, or in a problem where it is a refusal."""
    found = answered.problem
    return answered.status == HTTPStatus.OK or (found is not None and isinstance(found.answer, msgspec.Raw))


def read_answer(route: Route, answered: Answered) -> Any:
    """Return what `has_answer` found. Raises what msgspec does when it cannot be read."""
    found = answered.problem
    if found is None:
        return decode_answer(route, answered.body)
    assert isinstance(found.answer, msgspec.Raw)
    return decode_answer(route, bytes(found.answer))


class Attempts:
    """The attempts to get one command answered."""

    def __init__(self, base: str, route: Route, jitter: float) -> None:
        self._base = base
        self._route = route
        self._jitter = jitter
        self._until = time.monotonic() + PATIENCE_S
        self._failures = 0

    def after_error(self, error: CallFailed) -> float:
        """Return how long to wait before the next attempt; raises Unavailable if there is none."""
        if not error.was_sent:
            return self._pause(f"cannot be reached: {error}; check that it runs, and the URL", is_safe=True)
        return self._pause(f"did not answer: {error}", is_safe=self._route.is_repeatable)

    def after(self, answered: Answered) -> float | None:
        """Return how long to wait before the next attempt; None if this is the answer."""
        wait_s, is_repeatable = answered.retry_after_s, self._route.is_repeatable
        if answered.status == HTTPStatus.TOO_MANY_REQUESTS:
            return self._pause("has reached its request limit", is_safe=True, wait_s=wait_s)
        if answered.status not in AWAY:
            return None
        if answered.problem is None:
            return self._pause(f"is unavailable (status {answered.status})", is_safe=is_repeatable, wait_s=wait_s)
        if not is_repeatable or answered.problem.reason != "unavailable" or not self._has_time(wait_s):
            return None  # the server's own words are the error
        return self._pause("is unavailable", is_safe=True, wait_s=wait_s)

    def _pause(self, why: str, *, is_safe: bool, wait_s: float = 0.0) -> float:
        self._failures += 1
        if not is_safe or not self._has_time(wait_s):
            raise Unavailable(f"the server at {self._base} {why}")
        return max(wait_s, backoff_s(self._failures, self._jitter))

    def _has_time(self, wait_s: float) -> bool:
        return time.monotonic() + wait_s < self._until

    def read(self, answered: Answered) -> Any:
        """Return the command's answer, or raise the error that the server's store raised."""
        found = answered.problem
        try:
            if has_answer(answered):
                return read_answer(self._route, answered)
        except msgspec.DecodeError as error:
            raise Refused(
                f"{self._base} returned a reply to {self._route.name} which this version cannot read: {error}; "
                "upgrade the older of the two"
            ) from None
        if found is None:
            raise Refused(
                f"{self._base} is not a Leasemill server: it returned status {answered.status} for "
                f"{self._route.name}; check the URL"
            )
        if self._route.is_lookup and found.reason == "not_found":
            return None
        raise error_of(found)
