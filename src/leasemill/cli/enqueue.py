"""`leasemill enqueue`: a job from the shell, checked as if it came from code."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from leasemill.cli.filters import time_option
from leasemill.cli.opening import app_argument, app_url_option, json_option, refuse_memory
from leasemill.cli.output import emit
from leasemill.errors import NotFound
from leasemill.operator.wording import did_you_mean


@click.command()
@app_argument
@click.argument("kind")
@click.option("--args", "arguments", default="{}", metavar="OBJECT", help="The job's arguments, as a JSON object.")
@click.option("--delay", type=float, metavar="SECONDS", help="Do not run it before this many seconds have passed.")
@time_option("--run-at", help="Do not run it before this time, for example 2030-01-31T12:00:00+01:00.")
@click.option("--priority", type=click.IntRange(0, 9), help="From 0 to 9; higher runs first.")
@click.option("--id", "job_id", help="The job's id; the same id with the same content again changes nothing.")
@click.option("--lane", help="The lane it runs in.")
@click.option("--group", help="The group it becomes a member of; it must exist and must not be sealed.")
@click.option("--unique", metavar="KEY", help="A unique key: while a job holds it, print that job's id and make none.")
@app_url_option
@json_option
def enqueue(
    app: str,
    kind: str,
    arguments: str,
    delay: float | None,
    run_at: datetime | None,
    priority: int | None,
    job_id: str | None,
    lane: str | None,
    group: str | None,
    unique: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Enqueue a job of KIND and print its id."""
    from leasemill.cli.loading import load_app  # noqa: PLC0415  (--help must answer before it is imported)

    loaded = load_app(app, url)
    refuse_memory(loaded.url)
    job = loaded.jobs.get(kind)
    if job is None:
        known = ", ".join(sorted(loaded.jobs)) or "none"
        raise NotFound(f"{app} declares no job {kind!r}{did_you_mean(kind, loaded.jobs)} (declared: {known})")
    chosen = job.options(delay=delay, run_at=run_at, priority=priority, job_id=job_id, lane=lane, unique=unique)
    if group is None:
        handle = chosen.enqueue(**_object(arguments))
    else:
        handle = loaded.groups.get(group).enqueue(chosen.call(**_object(arguments)))
    document = {"id": handle.id, "kind": kind, "queue": job.queue, "is_duplicate": handle.is_duplicate}
    emit(as_json, document, handle.id)
    loaded.close()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--args is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError('--args must be a JSON object, for example --args \'{"account": "a1"}\'')
    return found
