"""`leasemill enqueue`: a job from the shell, or one for each line of a file, checked as if they came from code."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from leasemill.cli.filters import header_option, time_option
from leasemill.cli.lazy_group import EXIT_WRONG_CALL
from leasemill.cli.output import emit
from leasemill.cli.progress import quiet_option
from leasemill.cli.quantities import Seconds
from leasemill.cli.store_options import app_argument, app_url_option, json_option, refuse_memory
from leasemill.errors import NotFound
from leasemill.operator.wording import counted, did_you_mean

if TYPE_CHECKING:
    from leasemill.api.job import JobType

ARGS_EXAMPLE: Final = """write for example --args '{"account": "a1"}'"""


@click.command()
@app_argument
@click.argument("kind")
@click.option("--args", "arguments", metavar="OBJECT", help="The job's arguments, as a JSON object.")
@click.option(
    "--from",
    "file",
    metavar="FILE",
    help="Enqueue a job for each line: a JSON object of its arguments. - is standard input.",
)
@click.option("--id-field", metavar="NAME", help="With --from: the field of each line that is the job's id.")
@click.option("--dry-run", is_flag=True, help="With --from: check every line, and enqueue nothing.")
@click.option("--delay", type=Seconds(), metavar="SECONDS", help="Do not run it before this many seconds have passed.")
@time_option("--run-at", help="Do not run it before this time, for example 2030-01-31T12:00:00+01:00.")
@click.option("--priority", type=click.IntRange(0, 9), help="From 0 to 9; higher runs first.")
@click.option("--id", "job_id", help="The job's id; enqueueing the same id and content again changes nothing.")
@click.option("--lane", help="The lane it runs in.")
@click.option("--group", help="The group it becomes a member of; it must exist and must not be sealed.")
@click.option(
    "--unique", metavar="KEY", help="A unique key: while a job holds it, print that job's id and enqueue none."
)
@header_option("A header that travels with it; may be repeated.")
@quiet_option
@app_url_option
@json_option
def enqueue(
    app: str,
    kind: str,
    arguments: str | None,
    file: str | None,
    id_field: str | None,
    dry_run: bool,
    delay: float | None,
    run_at: datetime | None,
    priority: int | None,
    job_id: str | None,
    lane: str | None,
    group: str | None,
    unique: str | None,
    headers: dict[str, str],
    is_quiet: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Enqueue a job of KIND and print its id, or many with --from.

    With --from it stops at the first invalid line (exit code 2), at an id that exists with other content (1), or when
    the store is unavailable (3). The lines before are enqueued, and the message says which.
    """
    _check_options(file, {"--args": arguments, "--id": job_id, "--unique": unique}, id_field, dry_run)
    from leasemill.cli.app_loader import load_app

    loaded = load_app(app, url)
    refuse_memory(loaded.url)
    job = loaded.jobs.get(kind)
    if job is None:
        known = ", ".join(sorted(loaded.jobs)) or "none"
        raise NotFound(f"{app} declares no job {kind!r}{did_you_mean(kind, loaded.jobs)} (declared: {known})")
    chosen = job.options(
        delay=delay, run_at=run_at, priority=priority, job_id=job_id, lane=lane, unique=unique, headers=headers or None
    )
    if file is not None:
        _enqueue_lines(chosen, file, id_field, group, dry_run, is_quiet or as_json, as_json)
        loaded.close()
        return
    given = _object("{}" if arguments is None else arguments)
    handle = chosen.enqueue(**given) if group is None else loaded.groups.get(group).enqueue(chosen.call(**given))
    document = {"id": handle.id, "kind": kind, "queue": job.queue, "is_duplicate": handle.is_duplicate}
    emit(as_json, document, handle.id)
    loaded.close()


def _check_options(file: str | None, of_one: dict[str, str | None], id_field: str | None, dry_run: bool) -> None:
    given = [option for option, value in of_one.items() if value is not None]
    if file is not None and given:
        raise click.UsageError(f"{given[0]} is for one job, and --from enqueues many: leave one of them out")
    if file is None and (id_field is not None or dry_run):
        raise click.UsageError(f"{'--dry-run' if dry_run else '--id-field'} needs --from")


def _enqueue_lines(
    job: JobType[..., Any],
    file: str,
    id_field: str | None,
    group: str | None,
    dry_run: bool,
    is_quiet: bool,
    as_json: bool,
) -> None:
    from leasemill.cli import enqueue_file

    with enqueue_file.opened(file) as lines:
        source = enqueue_file.Source(lines, file, job, id_field)
        if not dry_run:
            sent = enqueue_file.enqueue_lines(source, group, is_quiet=is_quiet)
            emit(as_json, sent.document(), sent.sentence())
            return
        right, wrong = enqueue_file.check_lines(source, is_quiet=is_quiet)
    if not wrong:
        last = f"{counted(right, 'job')} would be enqueued"
    elif len(wrong) < enqueue_file.WRONG_SHOWN:
        last = f"{counted(len(wrong), 'line is', 'lines are')} wrong, {right:,} right: nothing was enqueued"
    else:
        last = f"the first {len(wrong)} wrong lines: nothing was enqueued"
    emit(as_json, {"lines": right, "wrong": wrong}, *wrong, last)
    if wrong:
        sys.exit(EXIT_WRONG_CALL)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(f"--args is not JSON: {error}; {ARGS_EXAMPLE}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"--args is not a JSON object; {ARGS_EXAMPLE}")
    return found
