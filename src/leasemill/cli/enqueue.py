"""`leasemill enqueue`: a job from the shell, checked as if it came from code."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from leasemill.cli.output import print_json
from leasemill.errors import NotFound


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.argument("kind")
@click.option("--json", "arguments", default="{}", metavar="OBJECT", help="The arguments, as a JSON object.")
@click.option("--delay", type=float, metavar="SECONDS", help="Not before this much later.")
@click.option("--run-at", metavar="TIME", help="Not before this time, as 2030-01-31T12:00:00+01:00.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher first.")
@click.option("--id", "job_id", help="The job's id; the same id and content again changes nothing.")
@click.option("--lane", help="The lane it runs in.")
@click.option("--output", type=click.Choice(["id", "json"]), default="id", show_default=True)
def enqueue(
    app: str,
    kind: str,
    arguments: str,
    delay: float | None,
    run_at: str | None,
    priority: int | None,
    job_id: str | None,
    lane: str | None,
    output: str,
) -> None:
    """Enqueue a job of KIND and print its id."""
    from leasemill.cli.loading import load_app  # noqa: PLC0415  (--help must answer before it is imported)

    loaded = load_app(app)
    job = loaded.jobs.get(kind)
    if job is None:
        known = ", ".join(sorted(loaded.jobs)) or "none"
        raise NotFound(f"{app} declares no job {kind!r}; it declares: {known}")
    handle = job.options(delay=delay, run_at=_time(run_at), priority=priority, job_id=job_id, lane=lane).enqueue(
        **_object(arguments)
    )
    if output == "json":
        print_json({"id": handle.id, "kind": kind, "queue": job.queue, "is_duplicate": handle.is_duplicate})
    else:
        click.echo(handle.id)
    loaded.close()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--json is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError('--json must be an object, as in --json \'{"account": "a1"}\'')
    return found


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--run-at {text} is no time: write it as 2030-01-31T12:00:00+01:00") from None
