"""The filters: the same options, with the same names, in every command that selects jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final

import click

from leasemill.cli.store_options import Command, with_options
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_headers
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import SECOND, Job, JobState

SCHEDULED: Final = "scheduled"
"""A READY job that is not due yet is shown as this, which is not a state of the store."""


def time_option(name: str, *, help: str) -> Callable[[Command], Command]:  # noqa: A002  (click's word)
    """Return an option that takes a time with its zone."""
    return click.option(name, metavar="TIME", callback=_as_time, help=help)


def header_option(help: str) -> Callable[[Command], Command]:  # noqa: A002
    """Return an option `--header NAME=VALUE`, whose values become a dict."""
    return click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, callback=_as_headers, help=help)


def filter_options(command: Command) -> Command:
    return with_options(
        command,
        click.option("--id", "job_ids", multiple=True, help="Jobs with this id; may be repeated."),
        click.option("--queue", help="Jobs of this queue."),
        click.option("--kind", help="Jobs of this kind."),
        click.option("--lane", help="Jobs of this lane."),
        click.option("--group", help="Members of this group."),
        click.option("--unique", metavar="KEY", help="Jobs with this unique key."),
        header_option("Jobs with this header; may be repeated: all must match."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice([*(state.value for state in JobState), SCHEDULED]),
            help="Jobs in this state; may be repeated. `scheduled`: ready, and not due yet.",
        ),
        click.option("--error", help="Jobs whose latest error contains this text."),
        time_option("--after", help="Jobs that last changed at or after this time: 2030-01-31T12:00:00+01:00."),
        time_option("--before", help="Jobs that last changed before this time."),
    )


def wanted(
    job_ids: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    lane: str | None,
    group: str | None,
    unique: str | None,
    headers: dict[str, str],
    states: tuple[str, ...],
    error: str | None,
    after: datetime | None,
    before: datetime | None,
) -> JobFilter:
    return JobFilter(
        job_ids=job_ids or None,
        queue=queue,
        kind=kind,
        lane=lane,
        states=frozenset(JobState.READY if one == SCHEDULED else JobState(one) for one in states) or None,
        updated_after=_instant(after),
        updated_before=_instant(before),
        error_contains=error,
        group=group,
        unique_key=unique,
        headers=headers or None,
    )


def is_wanted(job: Job, states: Collection[str], now: int) -> bool:
    """Check what a JobFilter cannot express: a READY job that is due is not `scheduled`."""
    if SCHEDULED not in states or JobState.READY.value in states or job.state is not JobState.READY:
        return True
    return job.available_at > now


def names_something(filters: dict[str, Any]) -> bool:
    return any(filters.values())


def _as_headers(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise Invalid(f"--header {text} has no value: write it as --header {text}=VALUE")
        if headers.setdefault(name, value) != value:
            raise Invalid(
                f"--header {name} is given twice, with {headers[name]!r} and {value!r}: a job has one value of it"
            )
    check_headers(headers)
    return headers


def _as_time(_context: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    option = parameter.opts[0]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} {text} is not a time: write it as 2030-01-31T12:00:00+01:00") from None
    if found.tzinfo is None:
        raise Invalid(f"{option} {text} has no time zone: write it as 2030-01-31T12:00:00+01:00, or with Z")
    return found


def _instant(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * SECOND)
