"""What to make of a server's answer, or of none. Pure: what is sent, and how long is slept, is the caller's.

A command is sent again only where that is safe: it was never sent, or it does the same when it is done twice.
Otherwise, and when the server stays away, it is Unavailable: unknown whether it happened.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from leasemill.errors import Refused, Unavailable
from leasemill.store.backoff import backoff_s
from leasemill.wire.codec import decode_answer
from leasemill.wire.problems import Problem, error_of, read_problem
from leasemill.wire.routes import Route

PATIENCE_S: Final = 5.0
"""How long a server that is restarted is waited for."""
NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
AWAY: Final = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}


class Answered(NamedTuple):
    """`problem`: None for an answer, and for what no Leasemill server wrote."""

    status: int
    problem: Problem | None
    body: bytes


def answered_by(response: httpx.Response) -> Answered:
    if response.status_code == HTTPStatus.OK:
        return Answered(response.status_code, None, response.content)
    found = read_problem(response.headers.get("content-type", ""), response.content)
    return Answered(response.status_code, found, response.content)


class Attempts:
    """Those to get one command answered."""

    def __init__(self, base: str, route: Route, jitter: float) -> None:
        self._base = base
        self._route = route
        self._jitter = jitter
        self._until = time.monotonic() + PATIENCE_S
        self._failures = 0

    def after_error(self, error: httpx.TransportError) -> float:
        """How long to wait before the next attempt."""
        words = str(error) or type(error).__name__
        if isinstance(error, NOT_SENT):
            return self._pause(f"cannot be reached: {words}", is_safe=True)
        return self._pause(f"did not answer: {words}", is_safe=self._route.is_repeatable)

    def after(self, answered: Answered) -> float | None:
        """None: this is the answer."""
        if answered.problem is None and answered.status in AWAY:
            return self._pause(f"is away (status {answered.status})", is_safe=self._route.is_repeatable)
        if answered.status == HTTPStatus.TOO_MANY_REQUESTS:
            return self._pause("takes no more requests for now", is_safe=True)
        return None

    def _pause(self, why: str, *, is_safe: bool) -> float:
        self._failures += 1
        if not is_safe or time.monotonic() >= self._until:
            raise Unavailable(f"the server at {self._base} {why}")
        return backoff_s(self._failures, self._jitter)

    def read(self, answered: Answered) -> Any:
        """The command's answer, or the error that the server's store raised."""
        found = answered.problem
        try:
            if answered.status == HTTPStatus.OK:
                return decode_answer(self._route, answered.body)
            if found is not None and isinstance(found.answer, msgspec.Raw):
                return decode_answer(self._route, bytes(found.answer))
        except msgspec.DecodeError as error:
            raise Refused(
                f"the answer of {self._base} to {self._route.name} is not as this version knows it: {error}"
            ) from None
        if found is None:
            raise Refused(
                f"{self._base} answered {self._route.name} with status {answered.status}, and not as a Leasemill "
                "server does: check the URL"
            )
        if self._route.is_lookup and found.reason == "not_found":
            return None
        raise error_of(found)
