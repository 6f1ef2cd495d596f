"""`leasemill jobs failures`, `cancel`, `redrive` and `purge`: commands that go through many jobs, page by page.

Jobs are read in pages and acted on by their ids, and the store decides for each whether it may (O2, O5), so such a
command can be interrupted and run again at any point. It ends at the jobs that existed when it began: one that is
redriven and fails again meanwhile is not redriven twice. A job that was named by its id and left alone is reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import click
import msgspec

from leasemill.cli.filters import SCHEDULED, filter_options, is_wanted, names_something, wanted
from leasemill.cli.interrupt import Interruptible
from leasemill.cli.lazy_group import EXIT_REFUSED
from leasemill.cli.output import emit_table
from leasemill.cli.progress import ShownProgress, quiet_option
from leasemill.cli.quantities import as_rate
from leasemill.cli.store_options import Command, by_option, limit_option, on_store, reason_option, with_options
from leasemill.errors import Invalid, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, REDRIVEN_STATES, UNENDED_STATES, UNSUCCESSFUL_STATES, Job, JobState
from leasemill.operator.fingerprint import Groups, fingerprint
from leasemill.operator.listing import PAGE, find_queue
from leasemill.operator.wording import counted, instant
from leasemill.store.base import Store

STEP_S: Final = 0.1
"""One paced batch covers this much time. It is short, to keep the rate even."""
NO_FILTERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("queue", "kind", "lane", "group", "unique", "error", "after", "before")),
    "job_ids": (),
    "states": (),
    "headers": {},
}
INTERRUPTED: Final = "interrupted: run the same command again to continue"


def bulk_options(command: Command) -> Command:
    return with_options(
        on_store(command),
        click.argument("named", metavar="[JOB_ID]...", nargs=-1),
        filter_options,
        click.option("--fingerprint", "print_", metavar="ID", help="Jobs of this group of `leasemill jobs failures`."),
        click.option("--all", "is_all", is_flag=True, help="All jobs; required without an id or a filter."),
        reason_option,
        by_option,
        click.option("--limit", type=click.IntRange(1), help="At most this many jobs."),
        click.option(
            "--rate", type=as_rate, metavar="N/s", help="At most this many jobs per s, min or h: 5/s, 100/min."
        ),
        click.option("--dry-run", is_flag=True, help="List the jobs, and change nothing."),
        quiet_option,
    )


@dataclass(frozen=True, slots=True)
class JobAction:
    """What a command does to each page of jobs: which states it applies to, what it calls, and how that is worded."""

    among: frozenset[JobState]
    run: Callable[[c.JobFilter], Iterable[str]]
    done: str
    hint: Mapping[JobState, str] = field(default_factory=dict)
    """Hints for jobs that were named and skipped, by their state."""
    repeats: frozenset[JobState] = frozenset()
    """A job that is named again in one of these states is not a failure."""
    held_back: dict[str, str] = field(default_factory=dict)
    """Jobs that were skipped because another job holds their unique key, with the id of that job."""


@click.command()
@bulk_options
def cancel(store: Store, reason: str, by: str, **options: Any) -> None:
    """Cancel jobs by id or filter.

    They end CANCELLED; a running job is stopped. A filter selects READY and LEASED jobs; --state selects others.
    JOB_ID is short for --id.
    """

    def run(where: c.JobFilter) -> list[str]:
        outcomes = store.cancel(where.job_ids or (), by=by, reason=reason)
        return [
            one.job_id
            for one in outcomes
            if isinstance(one, c.Cancelled) and one.state is JobState.CANCELLED and not one.is_repeat
        ]

    is_chosen = options["named"] or options["job_ids"] or options["states"]
    among = frozenset(JobState) - {JobState.SUCCEEDED, JobState.CANCELLED} if is_chosen else UNENDED_STATES
    run_bulk_action(store, JobAction(among, run, "cancelled", repeats=frozenset({JobState.CANCELLED})), **options)


@click.command()
@bulk_options
@click.option("--include-cancelled", is_flag=True, help="Also redrive cancelled jobs; name them by id.")
def redrive(store: Store, reason: str, by: str, include_cancelled: bool, **options: Any) -> None:
    """Make FAILED and DEAD jobs READY again.

    They get all their retries back. JOB_ID is short for --id.
    """
    _check_cancelled(include_cancelled, options)
    run_bulk_action(store, redrive_action(store, by, reason, include_cancelled=include_cancelled), **options)


def redrive_action(store: Store, by: str, reason: str, *, include_cancelled: bool = False) -> JobAction:
    def run(where: c.JobFilter) -> tuple[str, ...]:
        done = store.redrive(where, by=by, reason=reason, limit=PAGE, include_cancelled=include_cancelled)
        held_back.update((one.job_id, one.holder_id) for one in done.held_back)
        return done.job_ids

    held_back: dict[str, str] = {}
    among = UNSUCCESSFUL_STATES if include_cancelled else REDRIVEN_STATES
    hint = {JobState.CANCELLED: ": --include-cancelled redrives it"}
    return JobAction(among, run, "redriven", hint, held_back=held_back)


def _check_cancelled(include_cancelled: bool, options: dict[str, Any]) -> None:
    """O2: a filter never redrives a cancelled job."""
    is_meant = include_cancelled or JobState.CANCELLED in options["states"]
    if is_meant and not (include_cancelled and (options["job_ids"] or options["named"])):
        raise Invalid("cancelled jobs are redriven by id only: --id ID --include-cancelled")


@click.command()
@bulk_options
def purge(store: Store, reason: str, by: str, **options: Any) -> None:
    """Delete jobs that have ended, with their history.

    These are SUCCEEDED, FAILED, DEAD and CANCELLED jobs. JOB_ID is short for --id.
    """

    def run(where: c.JobFilter) -> tuple[str, ...]:
        return store.purge(where, by=by, reason=reason, limit=PAGE).job_ids

    hint = dict.fromkeys(UNENDED_STATES, ": cancel it first")
    run_bulk_action(store, JobAction(ENDED_STATES, run, "purged", hint), **options)


@click.command()
@filter_options
@limit_option("groups")
@on_store
def failures(store: Store, limit: int, as_json: bool, **filters: Any) -> None:
    """Group FAILED and DEAD jobs by kind and error.

    The largest group comes first. Errors that differ only in numbers, ids and quoted values are one group. `redrive`,
    `purge` and `cancel` act on a whole group with --fingerprint.
    """
    groups = Groups()
    for jobs in _pages(store, _narrowed(wanted(**filters), REDRIVEN_STATES)):
        for job in jobs:
            groups.add(job)
    found = groups.largest_first()
    shown = [(group, instant(group.first_at), instant(group.last_at)) for group in found[:limit]]
    emit_table(
        as_json,
        (msgspec.structs.asdict(group) | {"first_at": first, "last_at": last} for group, first, last in shown),
        ("fingerprint", "jobs", "kind", "first", "last", "example", "error"),
        (
            (group.fingerprint, f"{group.count:,}", group.kind, first, last, group.example, group.text)
            for group, first, last in shown
        ),
        f"{counted(len(found) - limit, 'more group')}: --limit {len(found)}" if len(found) > limit else "",
    )


def _narrowed(where: c.JobFilter, states: frozenset[JobState]) -> c.JobFilter:
    return msgspec.structs.replace(where, states=states & (where.states or states))


def _pages(
    store: Store, where: c.JobFilter, print_: str | None = None, states: Sequence[str] = (), now: int = 0
) -> Iterator[list[Job]]:
    """Yield the jobs that match, page by page. Jobs that are enqueued meanwhile are left out."""
    last = store.totals().seq
    after: int | None = 0
    while after is not None and after <= last:
        page = store.jobs(where, limit=PAGE, after=after)
        found = [
            job
            for job in page.jobs
            if job.seq <= last and (print_ is None or fingerprint(job) == print_) and is_wanted(job, states, now)
        ]
        if found:
            yield found
        after = page.after


def run_bulk_action(
    store: Store,
    action: JobAction,
    *,
    dry_run: bool,
    as_json: bool,
    is_quiet: bool = False,
    named: tuple[str, ...] = (),
    print_: str | None = None,
    is_all: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    **filters: Any,
) -> None:
    ids = filters["job_ids"] = (*named, *filters["job_ids"])
    if not (names_something(filters) or print_ or is_all):
        raise Invalid("which jobs? Name their ids, a filter (--queue, --kind, --error, …), or --all")
    where = _narrowed(wanted(**filters), action.among)
    states, now = filters["states"], store.time()
    total = None if print_ or SCHEDULED in states else _expected(store, where, limit)
    report = Report(as_json, dry_run, action.done, ids)
    pacing = Pacing(None if dry_run else rate)
    try:
        with Interruptible() as interruptible, report.progress(total, is_quiet) as progress:
            for batch in _batches(_pages(store, where, print_, states, now), pacing.batch, limit):
                interruptible.sleep(pacing.wait_s())
                report.add(batch if dry_run else action.run(msgspec.structs.replace(where, job_ids=batch)), progress)
                pacing.count(len(batch))
        for job_id, holder_id in action.held_back.items():  # U4
            is_named = report.missing.pop(job_id, True) is None
            report.leave(job_id, f"job {holder_id} holds its unique key", is_failure=is_named)
        if limit is None:
            _report_left(store, action, report)
    except KeyboardInterrupt:
        raise Refused(INTERRUPTED) from None
    finally:
        report.end()
    if report.has_failed:
        sys.exit(EXIT_REFUSED)


def _expected(store: Store, where: c.JobFilter, limit: int | None) -> int | None:
    """Return how many jobs match, or None if only reading them would show it."""
    if where.job_ids is not None:
        return len(set(where.job_ids))
    if where != c.JobFilter(queue=where.queue, states=where.states):
        return None
    if where.queue is None:
        counts = store.totals().counts
    else:
        queue = find_queue(store, where.queue)
        counts = {} if queue is None else queue.counts
    found = sum(count for state, count in counts.items() if where.states is None or state in where.states)
    return found if limit is None else min(found, limit)


def _report_left(store: Store, action: JobAction, report: Report) -> None:
    for job_id in report.missing:
        job = store.job(job_id)
        if job is None:
            report.leave(job_id, "there is no such job", is_failure=True)
        else:
            why = f"it is {job.state.value.upper()}{action.hint.get(job.state, '')}"
            report.leave(job_id, why, is_failure=job.state not in action.repeats)


def _batches(pages: Iterable[list[Job]], size: int, limit: int | None) -> Iterator[tuple[str, ...]]:
    ids = (job.spec.id for jobs in pages for job in jobs)
    chosen = islice(ids, limit)
    while batch := tuple(islice(chosen, size)):
        yield batch


class Pacing:
    """Keeps a bulk action at its rate, with small batches and without a burst after a slow one."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_at = 0.0
        self.batch = PAGE if rate is None else max(1, min(PAGE, int(rate * STEP_S)))

    def wait_s(self) -> float:
        return max(0.0, self._next_at - time.monotonic())

    def count(self, jobs: int) -> None:
        if self._rate is not None:
            self._next_at = max(self._next_at, time.monotonic()) + jobs / self._rate


class Report:
    """Prints ids as they come, without holding them in memory. Without `shows_ids` only JSON has them."""

    def __init__(
        self, as_json: bool, dry_run: bool, done: str, named: Iterable[str], *, shows_ids: bool = True
    ) -> None:
        self.count = 0
        self.missing = dict.fromkeys(named)
        """Jobs that were named by their ids, until they are acted on."""
        self.has_failed = False
        self._left: list[dict[str, str]] = []
        self._as_json = as_json
        self._shows_ids = shows_ids
        self._dry_run = dry_run
        self._done = f"{'would be ' if dry_run else ''}{done}"
        if as_json:
            click.echo('{"job_ids": [', nl=False)

    def progress(self, total: int | None, is_quiet: bool) -> ShownProgress:
        return ShownProgress(self._done, "job", total, is_quiet=is_quiet or self._as_json)

    def add(self, ids: Iterable[str], progress: ShownProgress) -> None:
        found = list(ids)
        for job_id in found:
            if self._as_json:
                comma = "," if self.count else ""
                click.echo(f"{comma}\n  {msgspec.json.encode(job_id).decode()}", nl=False)
            self.count += 1
            self.missing.pop(job_id, None)
        if found and self._shows_ids and not self._as_json:
            progress.echo("\n".join(found))
        progress.add(len(found))

    def leave(self, job_id: str, why: str, *, is_failure: bool) -> None:
        self._left.append({"id": job_id, "why": why})
        self.has_failed |= is_failure

    def end(self) -> None:
        if self._as_json:
            rest = msgspec.json.encode({"left_alone": self._left, "is_dry_run": self._dry_run}).decode()
            click.echo(f"], {rest.removeprefix('{')}")
            return
        for one in self._left:
            click.echo(f"{one['id']} was skipped: {one['why']}", err=True)
        click.echo(f"{counted(self.count, 'job')} {self._done}", err=True)
