"""The jobs that the fields of a URL select, both on the list of jobs and in actions on everything that matches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from starlette.datastructures import QueryParams

from leasemill.dashboard.bulk_actions import Selection
from leasemill.errors import Invalid
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import SECOND, JobState

FIELDS = (
    "state",
    "queue",
    "kind",
    "lane",
    "id",
    "error",
    "header",
    "group",
    "unique",
    "after",
    "before",
    "fingerprint",
)


def selection_of(query: QueryParams) -> Selection:
    def text(name: str) -> str | None:
        return query.get(name, "").strip() or None

    header = text("header")
    return Selection(
        JobFilter(
            queue=text("queue"),
            kind=text("kind"),
            lane=text("lane"),
            states=frozenset(_states(query)) or None,
            updated_after=_instant(text("after"), "after"),
            updated_before=_instant(text("before"), "before"),
            error_contains=text("error"),
            group=text("group"),
            unique_key=text("unique"),
        ),
        id_prefix=text("id"),
        header=None if header is None else _header(header),
        fingerprint=text("fingerprint"),
    )


def filter_fields(query: QueryParams) -> dict[str, list[str]]:
    """Return the fields of a URL that select jobs, without its cursor and its other fields."""
    found = {name: [one for one in query.getlist(name) if one.strip()] for name in FIELDS}
    return {name: values for name, values in found.items() if values}


def _states(query: QueryParams) -> Iterator[JobState]:
    for text in query.getlist("state"):
        if not text:
            continue
        try:
            yield JobState(text)
        except ValueError:
            states = ", ".join(state.value for state in JobState)
            raise Invalid(f"{text!r} is not a state: write one of {states}") from None


def _header(text: str) -> tuple[str, str | None]:
    name, separator, value = text.partition("=")
    return name.strip(), value.strip() if separator else None


def _instant(text: str | None, name: str) -> int | None:
    """Read a time. Without a zone it is in UTC, like all times that are shown."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name}={text!r} is not a time: write it as 2030-01-31T12:00") from None
    return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * SECOND)
