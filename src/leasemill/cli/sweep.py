"""`leasemill jobs failures`, `redrive` and `purge`: what goes through many jobs, page by page.

Jobs are read in pages and acted on by their ids, and the store decides again for each whether it may (O2, O5), so a
sweep can be broken off and run again at any point. It ends at the jobs that were there when it began: what is redriven
and fails once more while it goes on is not redriven again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import click
import msgspec

from leasemill.cli.filters import filter_options, names_something, wanted
from leasemill.cli.opening import by_option, opened, reason_option, url_option
from leasemill.cli.output import instant, json_option, print_json, print_table
from leasemill.errors import Invalid, Refused
from leasemill.fingerprint import Groups, fingerprint
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job, JobState
from leasemill.kernel.operate import ENDED_STATES, KEPT_STATES, REDRIVEN_STATES
from leasemill.store.base import FullStore

PAGE: Final = 1_000
PROGRESS_S: Final = 2.0
STEP_S: Final = 0.1
"""How long the jobs of one paced batch may take, so that a rate is even."""
UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}


def as_rate(value: str) -> float:
    """`5/s`, `100/min`, `1000/h` as jobs per second; a bare number is per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|min|h))?", value)
    rate = float(match[1]) / UNITS[match[2] or "s"] if match else 0.0
    if rate <= 0:
        raise click.BadParameter(f"{value!r} is no rate: write it as 5/s, 100/min or 1000/h")
    return rate


def sweep_options(command: Callable[..., None]) -> Callable[..., None]:
    options: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
        filter_options,
        click.option("--fingerprint", "print_", metavar="ID", help="Of this group of `leasemill jobs failures`."),
        click.option("--all", "is_all", is_flag=True, help="All of them, where no filter is named."),
        reason_option,
        by_option,
        click.option("--limit", type=click.IntRange(1), help="At most this many."),
        click.option(
            "--rate", type=as_rate, metavar="N/s", help="At most so many in a time, as 5/s, 100/min or 1000/h."
        ),
        click.option("--dry-run", is_flag=True, help="Only tell which."),
        url_option,
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@sweep_options
@click.option("--include-cancelled", is_flag=True, help="Also jobs that were cancelled; needs --id.")
def redrive(url: str, reason: str, by: str, include_cancelled: bool, **options: Any) -> None:
    """Make FAILED and DEAD jobs READY again, with all their retries."""
    _check_cancelled(include_cancelled, options)
    with opened(url) as store:

        def act(where: c.JobFilter) -> c.Operated:
            return store.redrive(where, by=by, reason=reason, limit=PAGE, include_cancelled=include_cancelled)

        _sweep(store, act, KEPT_STATES if include_cancelled else REDRIVEN_STATES, "redriven", **options)
        if options["job_ids"] and not include_cancelled:
            _name_cancelled(store, options["job_ids"])


def _check_cancelled(include_cancelled: bool, options: dict[str, Any]) -> None:
    """O2: a filter never takes back what somebody cancelled."""
    is_meant = include_cancelled or JobState.CANCELLED in options["states"]
    if is_meant and not (include_cancelled and options["job_ids"]):
        raise Invalid("cancelled jobs are redriven by id only: --id ID --include-cancelled")


def _name_cancelled(store: FullStore, ids: tuple[str, ...]) -> None:
    left = store.jobs(c.JobFilter(job_ids=ids, states=frozenset({JobState.CANCELLED})), limit=PAGE).jobs
    for job in left:
        click.echo(f"{job.spec.id} is cancelled and was left alone: --include-cancelled redrives it", err=True)


@click.command()
@sweep_options
def purge(url: str, reason: str, by: str, **options: Any) -> None:
    """Forget jobs that have ended (SUCCEEDED, FAILED, DEAD, CANCELLED), with their history."""
    with opened(url) as store:

        def act(where: c.JobFilter) -> c.Operated:
            return store.purge(where, by=by, reason=reason, limit=PAGE)

        _sweep(store, act, ENDED_STATES, "purged", **options)


@click.command()
@filter_options
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many groups.")
@url_option
@json_option
def failures(url: str, limit: int, as_json: bool, **filters: Any) -> None:
    """Group FAILED and DEAD jobs by kind and error, the values in it left out; the largest group first.

    A group is redriven or purged by its fingerprint.
    """
    groups = Groups()
    with opened(url) as store:
        for jobs in _pages(store, _narrowed(wanted(**filters), REDRIVEN_STATES)):
            for job in jobs:
                groups.add(job)
    found = groups.largest_first()
    if as_json:
        times = ("first_at", "last_at")
        print_json(
            [
                msgspec.structs.asdict(group) | {name: instant(getattr(group, name)) for name in times}
                for group in found[:limit]
            ]
        )
        return
    print_table(
        ("fingerprint", "jobs", "kind", "first", "last", "for example", "error"),
        [
            (
                group.fingerprint,
                f"{group.count:,}",
                group.kind,
                instant(group.first_at),
                instant(group.last_at),
                group.example,
                group.text,
            )
            for group in found[:limit]
        ],
    )
    if len(found) > limit:
        click.echo(f"{len(found) - limit:,} more groups: --limit {len(found)}")


def _narrowed(where: c.JobFilter, states: frozenset[JobState]) -> c.JobFilter:
    return msgspec.structs.replace(where, states=states & (where.states or states))


def _pages(store: FullStore, where: c.JobFilter, print_: str | None = None) -> Iterator[list[Job]]:
    """Jobs that fit, page by page, of those that are there now."""
    last = store.totals().seq
    after: int | None = 0
    while after is not None and after <= last:
        page = store.jobs(where, limit=PAGE, after=after)
        found = [job for job in page.jobs if job.seq <= last and (print_ is None or fingerprint(job) == print_)]
        if found:
            yield found
        after = page.after


def _sweep(
    store: FullStore,
    act: Callable[[c.JobFilter], c.Operated],
    among: frozenset[JobState],
    done: str,
    *,
    print_: str | None,
    is_all: bool,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    if not (names_something(filters) or print_ or is_all):
        raise Invalid("which jobs? Name them by a filter (--queue, --kind, --error, …), or say --all")
    where = _narrowed(wanted(**filters), among)
    telling = Telling(as_json, dry_run, done)
    pacing = Pacing(None if dry_run else rate)
    try:
        for ids in _batches(_pages(store, where, print_), pacing.batch, limit):
            pacing.wait()
            telling.tell(ids if dry_run else act(msgspec.structs.replace(where, job_ids=ids)).job_ids)
            pacing.count(len(ids))
    except KeyboardInterrupt:
        raise Refused("interrupted: run it again to go on with the rest") from None
    finally:
        telling.end()


def _batches(pages: Iterable[list[Job]], size: int, limit: int | None) -> Iterator[tuple[str, ...]]:
    ids = (job.spec.id for jobs in pages for job in jobs)
    chosen = islice(ids, limit)
    while batch := tuple(islice(chosen, size)):
        yield batch


class Pacing:
    """Keeps a sweep at its rate: small batches, and what a slow one left over is not made up for by a burst."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_at = 0.0
        self.batch = PAGE if rate is None else max(1, min(PAGE, int(rate * STEP_S)))

    def wait(self) -> None:
        if (left_s := self._next_at - time.monotonic()) > 0:
            time.sleep(left_s)

    def count(self, jobs: int) -> None:
        if self._rate is not None:
            self._next_at = max(self._next_at, time.monotonic()) + jobs / self._rate


class Telling:
    """Prints ids as they come, so that nothing is held; how far it is, now and then, on stderr."""

    def __init__(self, as_json: bool, dry_run: bool, done: str) -> None:
        self.count = 0
        self._as_json = as_json
        self._dry_run = dry_run
        self._done = f"{'would be ' if dry_run else ''}{done}"
        self._told_at = time.monotonic()
        if as_json:
            click.echo('{"job_ids": [', nl=False)

    def tell(self, ids: tuple[str, ...]) -> None:
        for job_id in ids:
            if self._as_json:
                comma = "," if self.count else ""
                click.echo(f"{comma}\n  {msgspec.json.encode(job_id).decode()}", nl=False)
            else:
                click.echo(job_id)
            self.count += 1
        if time.monotonic() - self._told_at > PROGRESS_S:
            self._told_at = time.monotonic()
            click.echo(f"{self.count:,} jobs {self._done} so far", err=True)

    def end(self) -> None:
        if self._as_json:
            click.echo(f'], "is_dry_run": {msgspec.json.encode(self._dry_run).decode()}}}')
        else:
            click.echo(f"{self.count:,} jobs {self._done}", err=True)
