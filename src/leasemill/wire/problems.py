"""What goes wrong, as `application/problem+json` (RFC 9457): the body, and which status means what.

The text of a problem is written for whoever reads it; programs decide by `status` and `reason`. It never holds a stack
trace, a token or a URL with a password.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

PROBLEM_TYPE: Final = "application/problem+json"


class Problem(Struct, frozen=True, omit_defaults=True):
    """`reason` is one word for programs. `field` and `limit`: what of the request was wrong, and what it may be.
    `answer`: what the command answered, where it was refused in it."""

    status: int
    title: str
    reason: str
    detail: str = ""
    field: str | None = None
    limit: str | None = None
    retry_after_s: float | None = None
    request_id: str | None = None


class Denied(Exception):
    """A request that is answered with a problem instead of being carried out."""

    def __init__(self, problem: Problem, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(problem.title)
        self.problem = problem
        self.headers = headers
