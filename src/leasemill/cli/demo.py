"""`leasemill demo`: three workers, a thousand jobs, one worker killed and one stopped; then the audit.

Unless a store is named, everything happens in a temporary folder or on a server made for it; its processes are gone
when the command ends. The command fails unless the audit holds, and the audit is made from the store's records and from
what handlers left outside of it.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import quote

import click

from leasemill.cli.lazy_group import EXIT_REFUSED
from leasemill.cli.output import print_json
from leasemill.cli.progress import ShownProgress
from leasemill.cli.store_options import json_option, operator_name, refuse_memory
from leasemill.demo import ledger
from leasemill.demo.audit import Audit, Disturbance, audit
from leasemill.demo.trail import TRAIL_VARIABLE, Trail
from leasemill.demo.workers import TookTooLong, WorkerProcess, wait_until
from leasemill.errors import Invalid, Refused, Unavailable
from leasemill.kernel.model import ENDED_STATES, JobState
from leasemill.operator.wording import counted
from leasemill.store.factory import open_store
from leasemill.store.file.options import parse_folder_url
from leasemill.store.http.address import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from leasemill.store.url import hidden_password

WORKERS: Final = 3
LANES: Final = 20
KILL_AT: Final = 0.15
STOP_AT: Final = 0.3
"""A worker is killed, and another one stopped, when these shares of the jobs are done."""
RUNS_TO_HIT: Final = 2
"""So many handlers must be in the middle of their work when their worker is hit."""
BUSY_S: Final = 3.0
"""A lane would take so long if nothing happened."""
WATCHED_S: Final = 40.0
"""It takes so long with the dashboard, on which leases are seen to expire and jobs to run again."""
LIMIT_S: Final = 55.0
"""The demo gives up when it takes this much longer than the lanes would."""
SIGN_IN_WITHIN_S: Final = 600.0
LOOPBACK: Final = "127.0.0.1"
EXAMPLES_SHOWN: Final = 5
NEEDED: Final = {
    "postgresql": (("psycopg",), "postgres,testing"),
    "http": (("httptools", "httpx", "starlette", "uvicorn"), "http,server"),
}
"""The packages that a temporary store of this kind needs, and the extras that install them."""


@click.command()
@click.option(
    "--store",
    "kind",
    type=click.Choice(["file", "postgresql", "http"]),
    help="A temporary store of this kind: a folder, a PostgreSQL server, or a Leasemill server on a folder. "
    "Default: file.",
)
@click.option(
    "--url",
    help="Run on this store instead, for example http://127.0.0.1:7411; its queues deposits and ledger must be empty.",
)
@click.option("--jobs", "count", default=1_000, show_default=True, type=click.IntRange(200), help="The number of jobs.")
@click.option("--keep", is_flag=True, help="Keep the folder, to inspect it afterwards.")
@click.option(
    "--dashboard",
    is_flag=True,
    help="Watch it in a browser. It runs slower, starts when you open the page, and stays up until Ctrl-C.",
)
@json_option
def demo(kind: str | None, url: str | None, count: int, keep: bool, dashboard: bool, as_json: bool) -> None:
    """Run 1,000 jobs, kill one worker and stop another in the middle, and audit the result.

    It takes less than a minute, and exits with 0 only if every effect was applied exactly once and in order.
    """
    signal.signal(signal.SIGTERM, _exit)  # so that no worker outlives this command
    folder = Path(tempfile.mkdtemp(prefix="leasemill-demo-"))
    cleaning = ExitStack()
    if not keep:
        cleaning.callback(shutil.rmtree, folder, ignore_errors=True)
    with cleaning:
        where = cleaning.enter_context(_store_url(kind or "file", folder) if url is None else _given(url, kind))
        if dashboard:
            cleaning.enter_context(_dashboard_of(where))
        began = time.monotonic()
        with ShownProgress("done", "job", count, is_quiet=as_json) as progress:
            result = _Demo(where, folder, count, progress, WATCHED_S if dashboard else BUSY_S, is_silent=as_json).run()
        took_s = time.monotonic() - began
        if as_json:
            location = str(folder) if keep else None
            print_json({**asdict(result), "holds": result.holds, "seconds": took_s, "folder": location})
        else:
            _print(result, took_s)
            has_store = url is not None or (keep and kind in {None, "file"})
            if has_store:
                click.echo(f"kept: leasemill jobs list --url {hidden_password(where)}")
            if keep and not where.startswith(f"file:{quote(str(folder))}"):
                click.echo(f"kept: {folder}")
    if not result.holds:
        sys.exit(EXIT_REFUSED)


@contextmanager
def _dashboard_of(url: str) -> Iterator[None]:
    """Serve the store's dashboard on a free port: enter when somebody has signed in, leave at Ctrl-C."""
    from leasemill.cli.dashboard import served
    from leasemill.server.address import bound_socket

    is_watched = threading.Event()
    with open_store(url) as store, bound_socket(LOOPBACK, 0) as listener:
        link, server = served(store, listener, LOOPBACK, by=operator_name(), on_sign_in=lambda _link: is_watched.set())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="leasemill-dashboard")
        thread.start()
        try:
            click.echo(f"open the dashboard to start the demo: {link}", err=True)
            is_watched.wait(SIGN_IN_WITHIN_S)
            yield
            click.echo("the dashboard stays up: look at the jobs that ran twice, and stop it with Ctrl-C", err=True)
            with suppress(KeyboardInterrupt):
                while thread.is_alive():
                    thread.join(0.2)  # in steps, so that Ctrl-C is noticed
        finally:
            server.should_exit = True
            thread.join()


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def _given(url: str, kind: str | None) -> Iterator[str]:
    """Check a store that is in use: its jobs must not be mixed up with the demo's."""
    if kind is not None:
        raise Invalid("--store creates a temporary store and --url names one: use only one of them")
    refuse_memory(url)
    shown = hidden_password(url)
    with open_store(url) as store:
        taken = {queue: sum(ledger.counts(store, queue).values()) for queue in (ledger.DEPOSITS, ledger.LEDGER)}
    for queue, jobs in taken.items():
        if jobs:
            raise Refused(
                f"{shown} has {counted(jobs, 'job')} in its queue {queue}, which the demo needs empty: name another "
                f"store, or delete what an earlier demo left: leasemill jobs purge --queue {queue} --reason demo "
                f"--url {shown}"
            )
    yield _from_anywhere(url)


def _from_anywhere(url: str) -> str:
    """Return the URL with an absolute path, because the workers run in the demo's folder."""
    if not url.startswith("file:"):
        return url
    _, separator, options = url.partition("?")
    return f"file:{quote(str(parse_folder_url(url)[0].absolute()))}{separator}{options}"


@contextmanager
def _store_url(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a temporary store; a server that it needs runs meanwhile."""
    if kind == "file":
        yield f"file:{quote(str(folder / 'jobs'))}"
        return
    packages, extras = NEEDED[kind]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise Invalid(f"leasemill demo --store {kind} needs {', '.join(missing)}: pip install 'leasemill[{extras}]'")
    if kind == "http":
        from leasemill.demo.server import ServerProcess

        for variable in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE):
            os.environ.pop(variable, None)  # a key of another server: this one would refuse it
        with ServerProcess(f"file:{quote(str(folder / 'jobs'))}", folder / "server.log") as served:
            yield served.url
        return
    from leasemill.testing.postgres import NoServer, PostgresServer

    try:
        server = PostgresServer()
        server.start()
    except NoServer as error:
        raise Refused(f"the demo has no PostgreSQL to run on: {error}") from None
    with server:
        yield f"{server.url()}&auto_migrate=true"


# What happens --------------------------------------------------------------------------------------------------


class _Demo:
    def __init__(
        self, url: str, folder: Path, count: int, progress: ShownProgress, busy_s: float, *, is_silent: bool
    ) -> None:
        self._url = url
        self._folder = folder
        self._progress = progress
        self._is_silent = is_silent
        self._entries = ledger.deposits(count, LANES)
        self._trail = Trail(folder / "trail")
        self._work_s = min(max(busy_s * LANES / count, 0.01), max(0.25, busy_s / 40))
        self._deadline = time.monotonic() + busy_s - BUSY_S + LIMIT_S

    def run(self) -> Audit:
        with ExitStack() as cleaning:
            self._store = cleaning.enter_context(open_store(self._url))
            cleaning.enter_context(ledger.app.bound_to(self._store))
            ledger.app.enqueue_many(ledger.calls(self._entries))
            self._tell(f"{len(self._entries):,} jobs in {LANES} lanes enqueued in {hidden_password(self._url)}")
            self._working = [cleaning.enter_context(self._worker(it)) for it in range(1, WORKERS + 1)]
            first, second, third = self._working
            self._tell(f"{WORKERS} workers started, leases of {ledger.LEASE_S:g} s")
            disturbance = self._disturb(first, second, third)
            return audit(self._store, self._entries, self._trail, disturbance)

    def _disturb(self, killed: WorkerProcess, stopped: WorkerProcess, left: WorkerProcess) -> Disturbance:
        """Kill one worker and stop another. If that takes too long, the audit still covers what has happened."""
        killed_at, exit_codes, trouble = math.inf, {}, None
        try:
            killed_at = self._kill(killed)
            self._stop_for_a_while(stopped)
            self._await_end()
            self._await("the continued worker to learn what it lost", lambda: not self._trail.unfinished(stopped.id))
            self._tell("all jobs are done: stopping the workers")
            exit_codes = {worker.id: worker.end() for worker in (stopped, left)}
        except TookTooLong as error:
            trouble = str(error)
        return Disturbance(killed.id, killed_at, stopped.id, exit_codes, trouble)

    def _worker(self, number: int) -> WorkerProcess:
        return WorkerProcess(
            "leasemill.demo.ledger:app",
            url=self._url,
            log=self._folder / f"worker-{number}.log",
            folder=self._folder,
            environment={
                TRAIL_VARIABLE: str(self._trail.path),
                ledger.WORK_VARIABLE: str(self._work_s),
            },
        )

    def _kill(self, worker: WorkerProcess) -> float:
        """Kill a worker in the middle of its work. It is stopped first, so that nothing changes during the check."""
        self._await_share(KILL_AT)
        worker.stop(lambda: self._is_hit(worker), self._left_s())
        killed_at = time.monotonic()
        worker.kill()
        self._working.remove(worker)
        runs = len(self._trail.unfinished(worker.id))
        self._tell(f"{worker.id} killed (SIGKILL) in the middle of {counted(runs, 'job')}")
        return killed_at

    def _stop_for_a_while(self, worker: WorkerProcess) -> None:
        self._await_share(STOP_AT)
        worker.stop(lambda: self._is_hit(worker), self._left_s())
        runs = self._trail.unfinished(worker.id)
        stopped_at = time.monotonic()
        self._tell(f"{worker.id} stopped (SIGSTOP) in the middle of {counted(len(runs), 'job')}")
        self._await("its jobs to be done without it", lambda: all(self._has_succeeded(mark.job) for mark in runs))
        worker.resume()
        stopped_s = time.monotonic() - stopped_at
        self._tell(
            f"{worker.id} continued after {stopped_s:.1f} s: another worker had taken over its jobs and finished them"
        )

    def _is_hit(self, worker: WorkerProcess) -> bool:
        """Return whether enough handlers have more than half of their work before them."""
        latest = time.monotonic() - self._work_s / 2
        return sum(mark.at > latest for mark in self._trail.unfinished(worker.id)) >= RUNS_TO_HIT

    def _tell(self, text: str) -> None:
        if not self._is_silent:
            self._progress.echo(text)

    # Waiting -----------------------------------------------------------------------------------------------------

    def _await_share(self, share: float) -> None:
        self._await("the workers to get on", lambda: self._done() >= share * len(self._entries))

    def _await_end(self) -> None:
        wanted = len(self._entries)
        self._await(
            "all jobs to be done",
            lambda: self._done() >= wanted and self._ended(ledger.LEDGER) >= wanted,
        )

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            self._done()
            for worker in self._working:
                worker.check_running()
            return condition()

        wait_until(look, what, self._left_s(), every_s=0.02)

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _done(self) -> int:
        done = self._ended(ledger.DEPOSITS)
        self._progress.reach(done)
        return done

    def _has_succeeded(self, job_id: str) -> bool:
        try:
            job = self._store.job(job_id)
        except Unavailable:
            return False
        return job is not None and job.state is JobState.SUCCEEDED

    def _ended(self, queue: str) -> int:
        try:
            counts = ledger.counts(self._store, queue)
        except Unavailable:
            return 0
        return sum(counts.get(state, 0) for state in ENDED_STATES)


def _print(result: Audit, took_s: float) -> None:
    click.echo(f"\naudit, after {took_s:.1f} s")
    for finding in result.findings:
        verdict = {True: "ok", False: "WRONG", None: ""}[finding.holds]
        click.echo(f"  {finding.name:<22} {verdict:<6} {finding.text}")
        for example in finding.wrong[:EXAMPLES_SHOWN]:
            click.echo(f"  {'':<22} {'':<6} {example}")
    click.echo("the audit holds" if result.holds else "the audit does NOT hold")
