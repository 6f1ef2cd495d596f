"""`leasemill worker`: run the handlers of an app."""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

from leasemill.api.policy import REAPER_INTERVALS_S
from leasemill.cli.durations import metavar, seconds_or
from leasemill.cli.opening import app_argument, app_url_option
from leasemill.cli.sizes import as_size
from leasemill.errors import LeasemillError, Unavailable
from leasemill.operator.wording import did_you_mean

if TYPE_CHECKING:
    from leasemill.api.app import App

log = logging.getLogger("leasemill.worker")


@click.command()
@app_argument
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE[=WEIGHT]",
    help="Serve this queue; may be repeated. Default: all queues of the app's jobs.",
)
@click.option("--concurrency", default=10, show_default=True, type=click.IntRange(1), help="Jobs run at the same time.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Run this many processes, each with its own slots."
)
@click.option("--prefetch", type=click.IntRange(0), help="The most jobs to claim ahead of a free slot.")
@click.option("--drain", is_flag=True, help="Stop when nothing is left to do.")
@click.option("--heartbeat", type=float, metavar="SECONDS", help="Time between heartbeats. Default: 0.3 of the lease.")
@click.option(
    "--reaper-interval",
    type=seconds_or(REAPER_INTERVALS_S),
    metavar=metavar(REAPER_INTERVALS_S),
    help="Time between searches for expired leases. Default: 10, or half the shortest lease.",
)
@click.option("--shutdown-timeout", type=float, metavar="SECONDS", help="How long the process may take to stop.")
@click.option(
    "--mismatch-timeout",
    type=float,
    metavar="SECONDS",
    help="How long a job that does not match the code waits for a worker whose code does. Default: 3600.",
)
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a process when it has run N jobs.")
@click.option(
    "--max-memory",
    type=as_size,
    metavar="SIZE",
    help="Replace a process, between jobs, when it uses more memory: 500MB, 2GiB.",
)
@click.option("--reload", is_flag=True, help="Restart when the app's Python files change; for development.")
@click.option(
    "--reload-dir",
    "reload_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Watch this folder as well; may be repeated.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus here, at /metrics: 9464, 0.0.0.0:9464. Default host: 127.0.0.1.",
)
@click.option("--worker-id", help="A unique name. Default: host, process id and a random part.")
@click.option(
    "--executor",
    type=click.Choice(["thread", "process"]),
    default="thread",
    show_default=True,
    help="Where handlers run whose jobs do not choose: in this process, or in processes that can be killed.",
)
@app_url_option
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--control", type=int, hidden=True)
@click.pass_context
def worker(
    context: click.Context,
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    processes: int | None,
    prefetch: int | None,
    drain: bool,
    heartbeat: float | None,
    reaper_interval: float | None,
    shutdown_timeout: float | None,
    mismatch_timeout: float | None,
    max_jobs: int | None,
    max_memory: int | None,
    reload: bool,
    reload_dirs: tuple[str, ...],
    metrics: str | None,
    worker_id: str | None,
    executor: Literal["thread", "process"],
    url: str | None,
    log_format: Literal["text", "json"],
    log_level: str,
    control: int | None,
) -> None:
    """Run the handlers of MODULE:APP until a signal stops it.

    After SIGTERM or SIGINT it claims no more jobs, waits for the running ones, and gives back the rest. After a second
    signal it does not wait.

    With --processes, --max-jobs, --max-memory or --reload a supervisor starts the processes, NAME.1 to NAME.N, and
    starts again those that die. SIGHUP restarts them one after the other, with new code.
    """
    from leasemill.api import logs  # noqa: PLC0415  (--help must answer before these are imported)
    from leasemill.store.presence import new_worker_id  # noqa: PLC0415

    worker_id = worker_id or new_worker_id()
    logs.configure_logging(log_format, log_level.upper(), worker_id=worker_id)
    if control is None and (reload or reload_dirs or processes or max_jobs or max_memory):
        from leasemill.cli.supervising import supervise  # noqa: PLC0415

        sys.exit(supervise(context, worker_id))

    from leasemill.cli.loading import load_app  # noqa: PLC0415  (a supervisor needs none of these)
    from leasemill.worker.exporting.endpoint import Endpoint, parsed_address  # noqa: PLC0415
    from leasemill.worker.exporting.measures import Measures  # noqa: PLC0415
    from leasemill.worker.process import run_process  # noqa: PLC0415
    from leasemill.worker.recycling import Recycling  # noqa: PLC0415
    from leasemill.worker.supervisor.supervised import EXIT_REPLACE, Supervised  # noqa: PLC0415
    from leasemill.worker.worker import Worker  # noqa: PLC0415

    supervised = None if control is None else Supervised(control)
    loaded = load_app(app, url)
    if metrics is not None:
        measures = Measures(loaded)
        loaded.observers.append(measures)
        if supervised is None:
            Endpoint(parsed_address(metrics), measures.all).start()
        else:
            supervised.share(measures)
    weights = dict(map(weighted, queues))
    warn_of_unknown(weights, loaded)
    if not drain:
        await_store(loaded)
    recycling = Recycling(max_jobs, max_memory)
    if max_jobs is not None or max_memory is not None:
        loaded.observers.append(recycling)
    running = Worker(
        loaded,
        weights or None,
        concurrency=concurrency,
        prefetch=prefetch,
        drain=drain,
        heartbeat_interval=heartbeat,
        reaper_interval=reaper_interval,
        shutdown_timeout=shutdown_timeout,
        mismatch_timeout=mismatch_timeout,
        worker_id=worker_id,
        executor=executor,
        handle_signals=False,
    )
    if supervised is not None:
        supervised.await_run(running, recycling, processes or 1)
    try:
        run_process(running, loaded.close, running.stop if supervised is None else supervised.stop_once)
    except LeasemillError:
        raise
    except Exception:
        log.critical("the worker ends because of an unexpected error", exc_info=True, extra={"worker": running.id})
        raise
    if running.is_retired:
        sys.exit(EXIT_REPLACE)


def await_store(app: App) -> None:
    """A worker that starts while its store is unavailable waits for it, as a running one would."""
    from leasemill.store.backoff import backoff_s  # noqa: PLC0415  (--help must answer before this is imported)

    for failures in itertools.count(1):
        try:
            app.store  # noqa: B018  (opens it)
        except Unavailable as error:
            log.warning("the store is unavailable, will retry: %s", error)
            time.sleep(backoff_s(failures, random.random()))
        else:
            return


def warn_of_unknown(queues: Iterable[str], app: App) -> None:
    """Jobs can be put into any queue from SQL, so a queue that no declaration names is not refused."""
    known = sorted(app.queues)
    for queue in queues:
        if queue not in known:
            log.warning(
                "no declared job uses queue %r%s (queues of declared jobs: %s)",
                queue,
                did_you_mean(queue, known),
                ", ".join(known) or "none",
            )


def weighted(text: str) -> tuple[str, int]:
    """`billing=3` as a queue and its weight."""
    name, separator, weight = text.partition("=")
    if separator and not weight.isdecimal():
        raise click.UsageError(f"--queue {text}: the weight must be a whole number, for example --queue {name}=3")
    return name, int(weight) if separator else 1
