"""What goes wrong, as `application/problem+json` (RFC 9457): the body, and which status means what.

The text of a problem is written for whoever reads it; programs decide by `status` and `reason`. It never holds a stack
trace, a token or a URL with a password.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from leasemill.errors import (
    Broken,
    GroupRefused,
    Invalid,
    JobConflict,
    LeasemillError,
    NotFound,
    QueueRefused,
    Refused,
    Unavailable,
)
from leasemill.kernel import commands as c

PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1


class Problem(Struct, frozen=True, omit_defaults=True):
    """Why a request was not carried out, or was refused. `reason` is a word for programs. `field` and `limit`: what of
    the request was wrong, and what it may be. `answer`: what the command returned, where that is a refusal."""

    status: int
    title: str
    reason: str
    detail: str = ""
    field: str | None = None
    limit: str | None = None
    job_id: str | None = None
    request_id: str | None = None
    answer: Raw | UnsetType = UNSET


class Denied(Exception):
    """A request that is answered with a problem instead of being carried out."""

    def __init__(self, problem: Problem, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(problem.title)
        self.problem = problem
        self.headers = headers


def problem(status: HTTPStatus, reason: str, detail: str = "", **fields: Any) -> Problem:
    return Problem(status.value, status.phrase, reason, detail, **fields)


ERRORS: Final[tuple[tuple[type[LeasemillError], HTTPStatus, str], ...]] = (
    (Invalid, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    (NotFound, HTTPStatus.NOT_FOUND, "not_found"),
    (JobConflict, HTTPStatus.CONFLICT, "job_conflict"),
    (QueueRefused, HTTPStatus.CONFLICT, "queue_refused"),
    (GroupRefused, HTTPStatus.CONFLICT, "group_refused"),
    (Refused, HTTPStatus.CONFLICT, "refused"),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    (Broken, HTTPStatus.SERVICE_UNAVAILABLE, "broken"),
)
"""The status of each error of a store; the first that fits."""

REFUSALS: Final[dict[type, tuple[HTTPStatus, str]]] = {
    c.Lost: (HTTPStatus.CONFLICT, "lost"),
    c.Conflict: (HTTPStatus.CONFLICT, "conflict"),
    c.OutOfOrder: (HTTPStatus.CONFLICT, "out_of_order"),
    c.ScheduleMoved: (HTTPStatus.CONFLICT, "schedule_moved"),
    c.AlreadySucceeded: (HTTPStatus.CONFLICT, "already_succeeded"),
    c.Missing: (HTTPStatus.NOT_FOUND, "not_found"),
}
"""Outcomes that are refusals. Where every item of a call was refused, its status is that of the first."""


def refusal_of(answer: Any) -> tuple[HTTPStatus, str] | None:
    """Whether an answer is a refusal and nothing else."""
    outcomes = answer if isinstance(answer, list) else [answer]
    if not outcomes or not all(type(outcome) in REFUSALS for outcome in outcomes):
        return None
    return REFUSALS[type(outcomes[0])]


def problem_of(error: LeasemillError) -> Denied:
    """An error of the store, as it is answered."""
    status, reason = next((status, reason) for kind, status, reason in ERRORS if isinstance(error, kind))
    headers = (("retry-after", str(RETRY_AFTER_S)),) if reason == "unavailable" else ()
    fields = {name: getattr(error, name, None) for name in ("field", "limit", "job_id")}
    return Denied(problem(status, reason, str(error), **fields), headers)


_decode: Final = msgspec.json.Decoder(Problem).decode


def read_problem(content_type: str, body: bytes | bytearray) -> Problem | None:
    """None: it is not one of ours; a proxy may have answered."""
    if not content_type.startswith(PROBLEM_TYPE):
        return None
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return None


def error_of(found: Problem) -> LeasemillError:
    """The error that the server's store raised."""
    match found.reason:
        case "job_conflict":
            return JobConflict(found.job_id or "")
        case "invalid":
            return Invalid(found.detail, field=found.field, limit=found.limit)
        case reason:
            other = Unavailable if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR else Refused
            kinds = {known: kind for kind, _, known in ERRORS}
            return kinds.get(reason, other)(found.detail or found.title)
