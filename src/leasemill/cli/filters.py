"""Which jobs a command is about: the same options wherever jobs are chosen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from leasemill.errors import Invalid
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import SECOND, JobState


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        [
            click.option("--id", "job_ids", multiple=True, help="This job; may be given several times."),
            click.option("--queue", help="Of this queue."),
            click.option("--kind", help="Of this kind."),
            click.option("--lane", help="Of this lane."),
            click.option(
                "--state",
                "states",
                multiple=True,
                type=click.Choice([state.value for state in JobState]),
                help="In it.",
            ),
            click.option("--error", help="Whose latest error contains this text."),
            click.option("--after-time", metavar="TIME", help="Changed then or later, as 2030-01-31T12:00:00+01:00."),
            click.option("--before-time", metavar="TIME", help="Changed before."),
        ]
    ):
        command = option(command)
    return command


def wanted(
    job_ids: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    lane: str | None,
    states: tuple[str, ...],
    error: str | None,
    after_time: str | None,
    before_time: str | None,
) -> JobFilter:
    return JobFilter(
        job_ids=job_ids or None,
        queue=queue,
        kind=kind,
        lane=lane,
        states=frozenset(map(JobState, states)) or None,
        updated_after=_instant("--after-time", after_time),
        updated_before=_instant("--before-time", before_time),
        error_contains=error,
    )


def names_something(filters: dict[str, Any]) -> bool:
    return any(filters.values())


def _instant(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} {text} is no time: write it as 2030-01-31T12:00:00+01:00") from None
    if found.tzinfo is None:
        raise Invalid(f"{option} {text} has no time zone: write it as 2030-01-31T12:00:00+01:00, or with Z")
    return round(found.timestamp() * SECOND)
