"""`leasemill workers`: which workers run, what they run, and commands to them."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from leasemill.api.logs import escaped
from leasemill.cli.lazy_group import EXIT_REFUSED
from leasemill.cli.output import emit, emit_table
from leasemill.cli.store_options import Command, acting_on_store, json_option, opened, url_option, with_options
from leasemill.errors import Refused
from leasemill.kernel.model import SECOND, Order, WorkerOrder
from leasemill.operator.wording import counted, span
from leasemill.operator.workers import OrderOutcome, ahead_or_behind, are_apart, is_obeyed, named, order_each, state_of
from leasemill.store.base import Store
from leasemill.store.worker_records import RunningJob, WorkerRecord, records

LOOK_S: Final = 0.25
DONE: Final = {
    Order.QUIET: "is quiet and runs nothing",
    Order.RESUME: "claims jobs",
    Order.STOP: "has stopped",
}


@click.group(invoke_without_command=True)
@url_option
@json_option
@click.pass_context
def workers(context: click.Context, url: str, as_json: bool) -> None:
    """List workers, as of their latest heartbeat; quiet, resume and stop them."""
    if context.invoked_subcommand is None:
        with opened(url) as store:
            _list(store, as_json)
        return
    for name, option in (("url", "--url"), ("as_json", "--json")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"write {option} after {context.invoked_subcommand}")


def _list(store: Store, as_json: bool) -> None:
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
    for record, age_s in [] if as_json else found:
        if record.order is not None and record.order.order is not Order.RESUME and not record.is_stale(age_s):
            click.echo(f"  {record.worker} was asked to {_asked(record.order)}")
        if are_apart(record.clock_ahead_s) and not record.is_stale(age_s):
            click.echo(
                f"  the clock of {record.worker}'s machine is {ahead_or_behind(record.clock_ahead_s)} the store's"
            )
        for job in record.running:
            where = "" if job.pid is None else f" in process {job.pid}"
            so_far = f"{job.seconds:.1f} s{where}{_progress(job)}"
            click.echo(f"  {record.worker} has been running {job.kind} {job.job} for {so_far}")
        for job in record.stuck:
            click.echo(
                f"  {record.worker} is stuck in {job.kind} {job.job}: attempt {job.attempt} is over, and its handler "
                f"has not returned after {job.seconds:.1f} s"
            )


# Orders ---------------------------------------------------------------------------------------------------------


def ordering(command: Command) -> Command:
    """Add WORKER and the options of a command to it."""
    wait_option = click.option("--wait", is_flag=True, help="Wait until the worker has done so.")
    return with_options(acting_on_store(command), click.argument("worker"), wait_option)


@workers.command()
@ordering
def quiet(store: Store, worker: str, wait: bool, reason: str, by: str, as_json: bool) -> None:
    """Ask WORKER to claim no more jobs. Running jobs continue, and the process stays up.

    WORKER is an id, a prefix of one, or the name of a supervisor, which stands for all its processes. It takes
    effect within 2 seconds. With --wait the command returns when its running jobs have ended too.
    """
    _order(store, worker, Order.QUIET, wait, reason, by, as_json)


@workers.command()
@ordering
def resume(store: Store, worker: str, wait: bool, reason: str, by: str, as_json: bool) -> None:
    """Ask a quiet WORKER to claim jobs again.

    WORKER is an id, a prefix of one, or the name of a supervisor, which stands for all its processes.
    """
    _order(store, worker, Order.RESUME, wait, reason, by, as_json)


@workers.command()
@ordering
def stop(store: Store, worker: str, wait: bool, reason: str, by: str, as_json: bool) -> None:
    """Ask WORKER to stop, as SIGTERM does. Running jobs may finish within its shutdown timeout; others are released.

    WORKER is an id, a prefix of one, or the name of a supervisor, which stands for all its processes. A supervisor
    does not restart a process that was stopped this way, and ends when all are stopped. A stop cannot be undone.
    """
    _order(store, worker, Order.STOP, wait, reason, by, as_json)


def _order(store: Store, worker: str, order: Order, wait: bool, reason: str, by: str, as_json: bool) -> None:
    found = records(store.presence)
    instances = {record.worker: record.instance for record, _ in found}
    meant = {one: instances[one] for one in named(found, worker)}
    outcomes = order_each(store, meant, order, by=by, reason=reason)
    if wait:
        outcomes = [one if one.refused else _awaited(store, order, one, meant[one.worker]) for one in outcomes]
    refused = [one.refused for one in outcomes if one.refused is not None]
    if len(outcomes) == len(refused) == 1:
        raise refused[0]
    emit(
        as_json,
        [{"worker": one.worker, **_order_fields(one)} for one in outcomes],
        *(f"worker {one.worker} {DONE[order] if wait else _outcome(one.holds)}" for one in outcomes if not one.refused),
    )
    for error in refused:
        click.echo(f"Error: {error}", err=True)
    if refused:
        click.echo(f"{counted(len(refused), 'worker')} of {len(outcomes)} not ordered", err=True)
        sys.exit(EXIT_REFUSED)


def _awaited(store: Store, order: Order, outcome: OrderOutcome, instance: str) -> OrderOutcome:
    try:
        _await(store, order, outcome.worker, instance)
    except Refused as error:
        return outcome._replace(refused=error)
    return outcome


def _await(store: Store, order: Order, worker: str, instance: str) -> None:
    shown = ""
    while not is_obeyed(order, found := records(store.presence), worker, instance):
        running = sum(len(record.running) for record, _ in found if record.worker == worker)
        line = f"waiting for {worker}" + (f", which runs {counted(running, 'job')}" if running else "")
        if line != shown:
            click.echo(line, err=True)
            shown = line
        time.sleep(LOOK_S)


def _outcome(holds: WorkerOrder | None) -> str:
    return "is not quiet: nothing to resume" if holds is None else f"was asked to {_asked(holds)}"


def _asked(order: WorkerOrder) -> str:
    what = "be quiet" if order.order is Order.QUIET else order.order.value
    return f"{what} by {order.by}: {order.reason}"


def _order_fields(outcome: OrderOutcome) -> dict[str, Any]:
    if outcome.refused is not None:
        return {"error": str(outcome.refused)}
    return {"order": None} if outcome.holds is None else msgspec.structs.asdict(outcome.holds)


# How values are written -----------------------------------------------------------------------------------------


def _state(record: WorkerRecord, age_s: float) -> str:
    state = state_of(record, age_s)
    return f"{state}, {len(record.stuck)} stuck" if record.stuck and not record.is_stale(age_s) else state


def _as_json(record: WorkerRecord, age_s: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields | {
        "seen_s_ago": round(age_s, 3),
        "is_stale": record.is_stale(age_s),
        "is_quiet": record.is_quiet,
    }


def _span(seconds: float) -> str:
    return span(int(max(0.0, seconds) * SECOND))


def _progress(job: RunningJob) -> str:
    if job.done is None:
        return ""
    total = "" if job.total is None else f"/{job.total:g}"
    return f" ({job.done:g}{total}{', ' + escaped(job.note) if job.note else ''})"
