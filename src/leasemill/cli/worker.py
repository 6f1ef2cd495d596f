"""`leasemill worker`: run the handlers of an app."""

from __future__ import annotations

import itertools
import logging
import random
import time
from typing import TYPE_CHECKING, Literal

import click

from leasemill.errors import Unavailable

if TYPE_CHECKING:
    from leasemill.app import App

log = logging.getLogger("leasemill.worker")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue", "queues", multiple=True, metavar="QUEUE[=WEIGHT]", help="Serve this queue; all of the app's unless told."
)
@click.option("--concurrency", default=10, show_default=True, type=click.IntRange(1), help="Jobs at the same time.")
@click.option("--prefetch", type=click.IntRange(0), help="Jobs claimed ahead of a free slot, at most.")
@click.option("--drain", is_flag=True, help="Stop when nothing is left to do.")
@click.option("--heartbeat", type=float, metavar="SECONDS", help="Between heartbeats; 0.3 of the lease unless told.")
@click.option("--reaper-interval", type=float, metavar="SECONDS", help="Between looks for expired leases.")
@click.option("--shutdown-timeout", type=float, metavar="SECONDS", help="How long running jobs may take to end.")
@click.option("--worker-id", help="A name of its own; host, process and a random part unless told.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def worker(
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    prefetch: int | None,
    drain: bool,
    heartbeat: float | None,
    reaper_interval: float | None,
    shutdown_timeout: float | None,
    worker_id: str | None,
    log_format: Literal["text", "json"],
    log_level: str,
) -> None:
    """Run the handlers of MODULE:APP until told to stop.

    SIGTERM or SIGINT: claims stop, running jobs may end, the rest is given back. A second one: at once.
    """
    from leasemill import logs  # noqa: PLC0415  (--help must answer before these are imported)
    from leasemill.cli.loading import load_app  # noqa: PLC0415
    from leasemill.worker.worker import Worker  # noqa: PLC0415

    logs.configure(log_format, log_level.upper())
    loaded = load_app(app)
    if not drain:
        await_store(loaded)
    running = Worker(
        loaded,
        dict(map(weighted, queues)) or None,
        concurrency=concurrency,
        prefetch=prefetch,
        drain=drain,
        heartbeat_interval=heartbeat,
        reaper_interval=reaper_interval,
        shutdown_timeout=shutdown_timeout,
        worker_id=worker_id,
    )
    running.run_sync()
    loaded.close()


def await_store(app: App) -> None:
    """A worker that starts while its store is away waits for it, as a running one would."""
    from leasemill.worker.pacing import backoff_s  # noqa: PLC0415  (--help must answer before this is imported)

    for failures in itertools.count(1):
        try:
            app.store  # noqa: B018  (opens it)
        except Unavailable as error:
            log.warning("the store is unavailable, trying again: %s", error)
            time.sleep(backoff_s(failures, random.random()))
        else:
            return


def weighted(text: str) -> tuple[str, int]:
    """`billing=3` as a queue and its weight."""
    name, separator, weight = text.partition("=")
    if separator and not weight.isdecimal():
        raise click.UsageError(f"--queue {text}: the weight is a whole number, as in --queue {name}=3")
    return name, int(weight) if separator else 1
