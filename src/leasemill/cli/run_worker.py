"""`leasemill worker` without a supervisor, or started by one: the process that runs the handlers.

Imported only when a worker runs: `--help` and a supervisor need none of this.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click

from leasemill.api.app import App
from leasemill.cli.app_loader import load_app
from leasemill.cli.reload import ReloadedProcess
from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.operator.wording import did_you_mean
from leasemill.store.backoff import backoff_s
from leasemill.store.system import out_of_descriptors
from leasemill.worker.process import Retirement, run_process
from leasemill.worker.process_ends import EXIT_REPLACE
from leasemill.worker.prometheus.endpoint import Endpoint, parsed_address
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.supervisor.supervised import Supervised
from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.worker")


def work(given: Mapping[str, Any], worker_id: str) -> None:
    """Run a worker with the options of the command until it is stopped. Exits if it is to be replaced."""
    supervised = None if given["control"] is None else Supervised(given["control"])
    reloaded = ReloadedProcess() if given["reloaded"] else None
    app = load_app(given["app"], given["url"])
    if given["metrics"] is not None:
        export(app, given["metrics"], supervised)
    queues = dict(map(weighted, given["queues"]))
    warn_of_unknown(queues, app)
    if supervised is None:  # a supervisor refuses it
        warn_of_memory(app)
    if given["drain"]:
        reach_store(app, queues)
    else:
        await_store(app, queues)
    retirement = Retirement(given["max_jobs"], given["max_memory"])
    if given["max_jobs"] is not None or given["max_memory"] is not None:
        app.observers.append(retirement)
    worker = new_worker(app, queues, given, worker_id)
    if supervised is not None:
        supervised.await_run(worker, retirement, given["processes"] or 1)
    if supervised is not None:
        run(worker, supervised.stop_once)
    elif reloaded is not None:
        run(worker, partial(reloaded.stop, worker))
    else:
        run(worker, worker.stop)
    if worker.is_retired:
        sys.exit(EXIT_REPLACE)


def export(app: App, address: str, supervised: Supervised | None) -> None:
    """Serve metrics, or share them with the supervisor, which serves those of all its processes."""
    measures = Measures(app)
    app.observers.append(measures)
    if supervised is None:
        Endpoint(parsed_address(address), measures.all).start()
    else:
        supervised.share(measures)


def new_worker(app: App, queues: Mapping[str, int], given: Mapping[str, Any], worker_id: str) -> Worker:
    return Worker(
        app,
        queues or None,
        concurrency=given["concurrency"],
        prefetch=given["prefetch"],
        drain=given["drain"],
        drain_wait=given["drain_wait"],
        heartbeat_interval=given["heartbeat"],
        reaper_interval=given["reaper_interval"],
        shutdown_timeout=given["shutdown_timeout"],
        mismatch_timeout=given["mismatch_timeout"],
        worker_id=worker_id,
        executor=given["executor"],
        handle_signals=False,
    )


def run(worker: Worker, on_signal: Callable[[], None]) -> None:
    try:
        run_process(worker, worker.app.close, on_signal)
    except LeasemillError:
        raise
    except Exception as error:  # the entry of the command line: logged with the worker's id, and passed on
        sentence = out_of_descriptors(error)
        if sentence is not None:
            raise Unavailable(sentence) from error
        log.critical("worker stops: unexpected error", exc_info=True, extra={"worker": worker.id})
        raise


def reach_store(app: App, queues: Iterable[str]) -> None:
    """Open the store and read something: opening alone does not reach a server. A key may not read other queues."""
    app.store.run(c.GetPolicies(tuple(queues or app.queues)))


def await_store(app: App, queues: Iterable[str]) -> None:
    """Wait for a store that is unavailable, as a running worker would."""
    for failures in itertools.count(1):
        try:
            reach_store(app, queues)
        except Unavailable as error:
            if failures == 1:
                log.warning("the store is unavailable, will retry: %s", error)
            time.sleep(backoff_s(failures, random.random()))
        else:
            if failures > 1:
                log.info("the store is available again")
            return


def warn_of_unknown(queues: Iterable[str], app: App) -> None:
    """Warn of queues that no job declares. They are not refused: SQL can enqueue into any queue."""
    known = sorted(app.queues)
    for queue in queues:
        if queue not in known:
            log.warning(
                "no declared job uses queue %r%s (queues of declared jobs: %s)",
                queue,
                did_you_mean(queue, known),
                ", ".join(known) or "none",
            )


def warn_of_memory(app: App) -> None:
    """Warn of a memory: store. It is not refused: schedules and handlers enqueue in this process too."""
    if app.url.startswith("memory:") and not app.is_open:
        log.warning(
            "a memory: store lives inside one process: this worker runs only jobs that its own code enqueues, "
            "and they are gone when it stops; name another store to share jobs, for example file:./.leasemill"
        )


def weighted(text: str) -> tuple[str, int]:
    """Read `billing=3` as a queue and its weight."""
    name, separator, weight = text.partition("=")
    if separator and not weight.isdecimal():
        raise click.UsageError(f"--queue {text}: the weight must be a whole number, for example --queue {name}=3")
    return name, int(weight) if separator else 1
