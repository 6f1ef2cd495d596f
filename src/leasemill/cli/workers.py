"""`leasemill workers`: which workers run, and what they run."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from leasemill.cli.opening import on_store
from leasemill.cli.output import emit_table, span
from leasemill.kernel.model import SECOND
from leasemill.operator.facts import AtWork
from leasemill.store.base import Store
from leasemill.store.presence import Presence
from leasemill.store.records import RunningJob, WorkerRecord, records


@click.command()
@on_store
def workers(store: Store, as_json: bool) -> None:
    """List workers, as of their latest heartbeat."""
    found = records(store.presence)
    emit_table(
        as_json,
        [_as_json(record, age_s) for record, age_s in found],
        ("worker", "heartbeat", "up", "queues", "jobs", "done", "state"),
        [
            (
                record.worker,
                f"{_span(age_s)} ago",
                _span(age_s + record.published_at - record.started_at),
                ",".join(record.queues),
                f"{len(record.running) + len(record.stuck)}/{record.concurrency}",
                f"{record.counters.get('succeeded', 0):,.0f}",
                _state(record, age_s),
            )
            for record, age_s in found
        ],
    )
    for record, _ in [] if as_json else found:
        for job in record.running:
            where = "" if job.pid is None else f" in process {job.pid}"
            click.echo(f"  {record.worker} has run {job.kind} {job.job} for {job.seconds:.1f} s{where}{_progress(job)}")
        for job in record.stuck:
            click.echo(
                f"  {record.worker} is stuck in {job.kind} {job.job}: attempt {job.attempt} is over, and its handler "
                f"has not returned after {job.seconds:.1f} s"
            )


def at_work(presence: Presence) -> list[AtWork]:
    """The workers with a recent heartbeat."""
    return [AtWork(one.worker, frozenset(one.queues)) for one, age_s in records(presence) if not one.is_stale(age_s)]


def _state(record: WorkerRecord, age_s: float) -> str:
    if record.is_stale(age_s):
        return "no heartbeat"
    state = "stopping" if record.is_stopping else "running"
    return f"{state}, {len(record.stuck)} stuck" if record.stuck else state


def _as_json(record: WorkerRecord, age_s: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields | {"seen_s_ago": round(age_s, 3), "is_stale": record.is_stale(age_s)}


def _span(seconds: float) -> str:
    return span(int(max(0.0, seconds) * SECOND))


def _progress(job: RunningJob) -> str:
    if job.done is None:
        return ""
    total = "" if job.total is None else f"/{job.total:g}"
    return f": {job.done:g}{total}{' ' + job.note if job.note else ''}"
