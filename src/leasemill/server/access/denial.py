"""How a key's client learns that it may not: status 403, and which item it was."""

from __future__ import annotations

from http import HTTPStatus

from leasemill.wire.problems import Denied, Problem


def forbidden(detail: str, item: str | None = None) -> Denied:
    status = HTTPStatus.FORBIDDEN
    return Denied(Problem(status.value, status.phrase, "forbidden", detail, field=item))
