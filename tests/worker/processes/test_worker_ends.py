"""Processes of handlers end with their worker, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from leasemill.store.factory import open_store
from tests.worker.processes import jobs
from tests.worker.processes.test_processes import is_gone
from tests.worker.support import until

ROOT = Path(__file__).parents[3]


@contextmanager
def command(url: str) -> Iterator[psutil.Popen]:
    app = "tests.worker.processes.jobs:app"
    with (jobs.folder() / "log").open("w") as log:
        worker = psutil.Popen(
            [sys.executable, "-m", "leasemill", "worker", app, "--url", url, "--concurrency", "1"],
            cwd=ROOT,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield worker
        finally:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait(30)


async def test_a_process_ends_with_its_lease_when_the_worker_stands_still_and_with_a_worker_that_is_killed(
    tmp_path: Path,
) -> None:
    url = f"file:{tmp_path / 'store'}"
    with jobs.trail(tmp_path), open_store(url) as store, jobs.app.bound_to(store):
        jobs.sleeps.options(lease=1, timeout=60).enqueue(60)
        with command(url) as worker:
            await until(lambda: jobs.marks("began"), "the handler", 60)
            worker.send_signal(signal.SIGSTOP)
            first = jobs.marks("began")[0]
            await until(lambda: is_gone(first.pid), "the process of a worker that stands still to end")
            worker.send_signal(signal.SIGCONT)

            await until(lambda: len(jobs.marks("began")) == 2, "the next attempt", 60)
            os.killpg(worker.pid, signal.SIGTERM)  # as a service manager does: the handler's process ignores it
            second = jobs.marks("began")[1]
            assert not jobs.marks("cleaned")
            worker.kill()
            await until(lambda: is_gone(second.pid), "the process of a worker that was killed to end")
        assert not jobs.marks("overlapped")
