"""`leasemill worker`: run the handlers of an app."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

import click

from leasemill.api.policy import REAPER_INTERVALS_S
from leasemill.cli.quantities import Seconds, as_size, metavar, seconds_or
from leasemill.cli.store_options import app_argument, app_url_option

SUPERVISED_BY: Final = ("processes", "max_jobs", "max_memory")
"""Options that need a supervisor."""


@click.command()
@app_argument
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE[=WEIGHT]",
    help="Serve this queue; may be repeated. Default: all queues of the app's jobs.",
)
@click.option(
    "--concurrency", default=10, show_default=True, type=click.IntRange(1), help="How many jobs run at the same time."
)
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Run this many processes, each with its own slots."
)
@click.option("--prefetch", type=click.IntRange(0), help="How many jobs to claim ahead of a free slot, at most.")
@click.option("--drain", is_flag=True, help="Exit once no job is due. (Jobs waiting for a retry stay queued.)")
@click.option(
    "--drain-wait",
    type=Seconds(),
    metavar="SECONDS",
    default=0,
    help="With --drain, wait for jobs that are due within this time, such as retries.",
)
@click.option(
    "--heartbeat", type=Seconds(), metavar="SECONDS", help="Time between heartbeats. Default: 0.3 of the lease."
)
@click.option(
    "--reaper-interval",
    type=seconds_or(REAPER_INTERVALS_S),
    metavar=metavar(REAPER_INTERVALS_S),
    help="Time between searches for expired leases. Default: 10, or half the shortest lease.",
)
@click.option(
    "--shutdown-timeout",
    type=Seconds(),
    metavar="SECONDS|infinity",
    help="How long the process may take to stop; infinity: until its running jobs have ended. Default: 20, or the "
    "shortest lease.",
)
@click.option(
    "--mismatch-timeout",
    type=Seconds(),
    metavar="SECONDS",
    help="How long a job that does not match the code waits for a worker whose code does. Default: 3600.",
)
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a process when it has run N jobs.")
@click.option(
    "--max-memory",
    type=as_size,
    metavar="SIZE",
    help="Replace a process, between jobs, when it uses more memory than this: 500MB, 2GiB.",
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
    help="Where handlers run unless their job chooses: in this process, or in processes that can be killed.",
)
@app_url_option
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How lines are written to standard error: text, or a JSON object per line.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level that is logged.",
)
@click.option("--control", type=int, hidden=True)
@click.option("--reloaded", is_flag=True, hidden=True)
@click.pass_context
def worker(
    context: click.Context,
    /,
    worker_id: str | None,
    log_format: Literal["text", "json"],
    log_level: str,
    **given: Any,
) -> None:
    """Run the handlers of MODULE:APP until a signal stops it.

    After SIGTERM or SIGINT it claims no more jobs, waits for running jobs, and releases the rest. After a second signal
    it does not wait.

    With --processes, --max-jobs or --max-memory a supervisor starts the processes, NAME.1 to NAME.N, and restarts those
    that die. SIGHUP replaces them one by one, with new code.
    """
    from leasemill.api import logs
    from leasemill.store.presence import new_worker_id

    worker_id = worker_id or new_worker_id()
    logs.configure_logging(log_format, log_level.upper(), worker_id=worker_id)
    if given["reload_dirs"] and not given["reload"]:
        raise click.UsageError("--reload-dir needs --reload")
    if given["reload"]:
        from leasemill.cli.run_supervisor import reload

        reload(context, worker_id)
        return
    if given["control"] is None and any(given[name] for name in SUPERVISED_BY):
        from leasemill.cli.run_supervisor import supervise

        sys.exit(supervise(context, worker_id))
    from leasemill.cli.run_worker import work  # a supervisor does not need it

    work(given, worker_id)
