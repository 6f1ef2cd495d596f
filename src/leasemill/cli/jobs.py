"""`leasemill jobs`: list, show and explain jobs, and act on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from leasemill.api.redaction import REDACTED, Redaction
from leasemill.cli.bulk_action import cancel, failures, purge, redrive
from leasemill.cli.filters import SCHEDULED, filter_options, is_wanted, wanted
from leasemill.cli.output import emit, first_line, print_fields, print_json, print_lines, print_table
from leasemill.cli.store_options import limit_option, on_store
from leasemill.errors import NotFound
from leasemill.kernel.model import NEVER, Cancellation, Execution, Job, JobState, Refusal, Rules
from leasemill.kernel.transitions.unique import unique_of
from leasemill.operator.explain import explain
from leasemill.operator.facts import at_work, gather
from leasemill.operator.history import shown_error
from leasemill.operator.missing_job import explain_missing
from leasemill.operator.wording import counted, instant, span
from leasemill.store.base import Store

PAGE = 1_000
EXECUTION_FIELDS = (
    *("attempt", "worker", "fence", "status", "reason", "ended_by"),
    *("leased_at", "started_at", "committed_at", "finished_at", "expires_at", "error"),
)


@click.group()
def jobs() -> None:
    """List, show, explain, cancel, redrive and purge jobs."""


@jobs.command("list")
@filter_options
@click.option("--oldest-first", is_flag=True, help="In the order they were enqueued. Default: newest first.")
@limit_option()
@click.option("--cursor", default=0, help="Continue after this position: the last line of a full page shows it.")
@on_store
def list_jobs(store: Store, oldest_first: bool, limit: int, cursor: int, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first.

    A READY job that is not due yet is shown as `scheduled`, with the time left.
    """
    found: list[Job] = []
    now = store.time()
    goes_on: int | None = cursor
    while goes_on is not None and len(found) < limit:
        page = store.jobs(
            wanted(**filters), limit=min(PAGE, limit - len(found)), after=goes_on, newest_first=not oldest_first
        )
        found += [job for job in page.jobs if is_wanted(job, filters["states"], now)]
        goes_on = page.after
    if as_json:
        print_json({"jobs": [summary(job) for job in found], "cursor": goes_on})
        return
    rows = [
        (
            job.spec.id,
            shown_state(job, now),
            _due(job, now),
            job.spec.queue,
            job.spec.kind,
            job.spec.lane or "-",
            str(job.attempt),
            instant(job.updated_at),
            first_line(shown_error(job)),
        )
        for job in found
    ]
    print_table(("id", "state", "due", "queue", "kind", "lane", "attempts", "updated", "error"), rows)
    if goes_on is not None:
        order = "--oldest-first " if oldest_first else ""
        click.echo(f"next page: {order}--cursor {goes_on}", err=True)


@jobs.command()
@click.argument("job_id")
@on_store
def show(store: Store, job_id: str, as_json: bool) -> None:
    """Show a job with its executions and refused reports."""
    job = store.job(job_id)
    if job is None:
        raise _no_such_job(job_id)
    if as_json:
        print_json(detailed(job))
    else:
        _print_job(job, store.time())


def _no_such_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}: it never existed, or retention or purge has removed it")


@jobs.command("explain")
@click.argument("job_id")
@on_store
def explain_job(store: Store, job_id: str, as_json: bool) -> None:
    """Explain in sentences why a job is in its state.

    It says what the job waits for, who runs it, why it ran more than once, how it ended, and what you can do.
    """
    facts = gather(store, job_id, store.time(), at_work(store.presence))
    found = explain_missing(store, job_id) if facts is None else explain(facts)
    if found is None:
        raise _no_such_job(job_id)
    emit(as_json, found, *found.now, *found.history, *(f"  -> {line}" for line in found.advice))


for command in (failures, cancel, redrive, purge):
    jobs.add_command(command)


# How a job is shown --------------------------------------------------------------------------------------------


def shown_state(job: Job, now: int) -> str:
    """A job that is READY but not due yet is shown as scheduled, unlike one that waits for a worker."""
    return SCHEDULED if job.state is JobState.READY and job.available_at > now else job.state.value


def _due(job: Job, now: int) -> str:
    if job.state is not JobState.READY:
        return "-"
    return "now" if job.available_at <= now else f"in {span(job.available_at - now)}"


def summary(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "id": spec.id,
        "state": job.state,
        "queue": spec.queue,
        "kind": spec.kind,
        "lane": spec.lane,
        "group": None if spec.rules is None else spec.rules.group,
        "unique": None if (unique := unique_of(spec)) is None else unique.key,
        "headers": spec.headers or {},
        "priority": spec.priority,
        "payload": msgspec.Raw(spec.payload),
        "attempts": job.attempt,
        "retries": job.retries,
        "expirations": job.expirations,
        "created_at": instant(job.created_at),
        "available_at": instant(job.available_at),
        "updated_at": instant(job.updated_at),
        "error": shown_error(job),
    }


def detailed(job: Job) -> dict[str, Any]:
    return {
        **summary(job),
        "result": None if job.result is None else msgspec.Raw(job.result),
        "cancellation": None if job.cancellation is None else _fields(job.cancellation, "at", "by", "reason"),
        "blocks_lane": job.blocks_lane,
        "policy": None if job.spec.policy is None else msgspec.structs.asdict(job.spec.policy),
        "executions": [_fields(execution, *EXECUTION_FIELDS) for execution in job.executions],
        "refusals": [
            _fields(refusal, "at", "verb", "worker", "attempt", "reason") | {"latest_attempt": refusal.current_attempt}
            for refusal in job.refusals
        ],
    }


def _fields(record: Execution | Cancellation | Refusal, *names: str) -> dict[str, Any]:
    """Return the named fields of a record, with times written for people."""
    values = {name: getattr(record, name) for name in names}
    return {name: instant(value) if name.endswith("at") else value for name, value in values.items()}


def _print_job(job: Job, now: int) -> None:
    spec = job.spec
    lines = [
        ("job", spec.id),
        ("state", shown_state(job, now).upper() + (" (blocks its lane)" if job.blocks_lane else "")),
        ("queue", spec.queue),
        ("kind", spec.kind),
        ("lane", spec.lane or "-"),
        *_bonds(spec.rules),
        *([("headers", _headers(spec.headers))] if spec.headers else []),
        ("priority", str(spec.priority)),
        ("payload", spec.payload.decode()),
        ("enqueued", instant(job.created_at)),
        ("available", instant(job.available_at)),
        (
            "attempts",
            f"{job.attempt} ({counted(job.retries, 'retry', 'retries')}, {counted(job.expirations, 'expiration')})",
        ),
    ]
    if job.result is not None:
        lines.append(("result", job.result.decode()))
    print_fields(lines)
    if job.executions:
        click.echo("\nexecutions")
        print_table(
            ("attempt", "worker", "fence", "leased", "waited", "ran", "ended", "outcome"),
            [_execution_row(execution) for execution in job.executions],
        )
        for execution in job.executions:
            if execution.error:
                click.echo(f"\nerror of attempt {execution.attempt}")
                print_lines(execution.error)
    if job.refusals:
        click.echo("\nrefused reports")
        print_table(
            ("at", "verb", "worker", "attempt", "latest attempt", "reason"),
            [
                (
                    instant(refusal.at),
                    refusal.verb.value,
                    refusal.worker or "unknown",
                    "unknown" if refusal.attempt is None else str(refusal.attempt),
                    str(refusal.current_attempt),
                    f"lease {refusal.reason.value}",
                )
                for refusal in job.refusals
            ],
        )


def _headers(headers: Mapping[str, str]) -> str:
    """Return the headers without the values of those that look like secrets; --json has them all."""
    redaction = Redaction()
    return ", ".join(f"{name}={REDACTED if redaction.hides(name) else value}" for name, value in headers.items())


def _bonds(rules: Rules | None) -> list[tuple[str, str]]:
    group = [] if rules is None or rules.group is None else [("group", rules.group)]
    group += [] if rules is None or rules.unique is None else [("unique", rules.unique.key)]
    followed = [] if rules is None or not rules.chain else [("chain", ", ".join(one.kind for one in rules.chain))]
    return group + followed


def _execution_row(execution: Execution) -> tuple[str, ...]:
    started, ended = execution.started_at, execution.finished_at
    return (
        str(execution.attempt),
        execution.worker,
        str(execution.fence),
        instant(execution.leased_at),
        span(None if started is None else started - execution.leased_at),
        span(None if started is None or ended is None else ended - started),
        instant(ended),
        _how(execution),
    )


def _how(execution: Execution) -> str:
    if execution.finished_at is None:
        lease = "never expires" if execution.expires_at == NEVER else f"expires {instant(execution.expires_at)}"
        return f"{execution.status.value}, lease {lease}"
    if execution.reason is not None:
        return execution.reason.value + (" permanently" if execution.is_final else "")
    by = execution.ended_by.value if execution.ended_by else "-"
    return execution.status.value if by == "ack" else f"{execution.status.value}, by {by} after its commit"
