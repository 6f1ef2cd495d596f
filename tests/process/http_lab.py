"""A server that is killed again and again, while producers and workers use it; then the audit.

Every job moves money once: its commit enqueues one receipt, and its handler leaves a mark outside when the commit
returned. What happened is read from the folder itself, without a server.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.demo.server import ServerProcess
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.opening import open_store
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until

MARKS_VARIABLE: Final = "LEASEMILL_TEST_MARKS"
LEASE_S: Final = 5.0
LIMIT_S: Final = 120.0
BATCH: Final = 5
PAGE: Final = 1_000

app = App()


@app.job(queue="money", lease=LEASE_S)
def moves(ctx: Context, number: int) -> int:
    time.sleep(0.01)
    with ctx.commit() as tx:
        tx.enqueue(receipt, number)
    _mark(number)
    return number


@app.job(queue="receipts", lease=LEASE_S)
async def receipt(number: int) -> int:
    return number


def _mark(number: int) -> None:
    fd = os.open(os.environ[MARKS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"%d\n" % number)  # one short line: appended whole
    finally:
        os.close(fd)


class HttpOutcome(Struct, frozen=True):
    kills: int
    jobs: int
    took_s: float
    unavailable: int
    """Enqueues that had to be repeated by their producer."""
    wrong: tuple[str, ...]


class HttpLab:
    """`jobs` is how many there are at least; producers go on as long as servers are killed."""

    def __init__(self, folder: Path, kills: int, workers: int, seed: int) -> None:
        self._folder = folder
        self._kills = kills
        self._workers = workers
        self._random = random.Random(seed)
        self._url = f"file:{folder / 'jobs'}"
        self._marks = folder / "marks"
        self._stop = threading.Event()
        self._enqueued = 0
        self._unavailable = 0

    def run(self) -> HttpOutcome:
        began = time.monotonic()
        with ExitStack() as cleaning:
            server = cleaning.enter_context(ServerProcess(self._url, self._folder / "server.log"))
            for number in range(self._workers):
                cleaning.enter_context(self._worker(server.url, f"worker-{number}"))
            producer = threading.Thread(target=self._produce, args=(server.url,), daemon=True)
            producer.start()
            cleaning.callback(self._stop.set)
            for _ in range(self._kills):
                time.sleep(self._random.uniform(0.1, 0.7))
                server.kill()
                server.start()
            self._stop.set()
            producer.join(LIMIT_S)
            with open_store(server.url) as store:
                wait_until(lambda: _is_done(store), "all jobs to end", LIMIT_S, every_s=0.1)
        return HttpOutcome(
            self._kills, self._enqueued, time.monotonic() - began, self._unavailable, tuple(self._wrong())
        )

    def _worker(self, url: str, name: str) -> WorkerProcess:
        return WorkerProcess(
            "tests.process.http_lab:app",
            url=url,
            log=self._folder / f"{name}.log",
            worker_id=name,
            options=["--concurrency", "4"],
            folder=self._folder,
            environment={MARKS_VARIABLE: str(self._marks), "PYTHONPATH": IMPORT_PATH},
        )

    def _produce(self, url: str) -> None:
        with open_store(url) as store:
            while not self._stop.is_set():
                numbers = range(self._enqueued, self._enqueued + BATCH)
                specs = [JobSpec(f"job-{number}", "money", moves.kind, b'{"number":%d}' % number) for number in numbers]
                assert all(isinstance(one, c.Enqueued | c.Duplicate) for one in self._sent(store, specs))
                self._enqueued += BATCH
                self._stop.wait(0.1)

    def _sent(self, store: Store, specs: list[JobSpec]) -> list[c.EnqueueOutcome]:
        while True:
            try:
                return store.enqueue(specs)
            except Unavailable:
                self._unavailable += 1

    def _wrong(self) -> list[str]:
        """What is not as it must be: nothing lost, nothing doubled."""
        wrong: list[str] = []
        marks = Counter(self._marks.read_text().split())
        with open_store(self._url) as store:
            moved, receipts, after = 0, 0, 0
            while True:
                page = store.jobs(limit=PAGE, after=after)
                for job in page.jobs:
                    committed = [one for one in job.executions if one.committed_at is not None]
                    if job.state is not JobState.SUCCEEDED or len(committed) != 1:
                        wrong.append(f"{job.spec.id} is {job.state} with {len(committed)} commits")
                    is_receipt = job.spec.queue == "receipts"
                    receipts += is_receipt
                    moved += not is_receipt
                if page.after is None:
                    break
                after = page.after
        doubled = [number for number, times in marks.items() if times > 1]
        if doubled:
            wrong.append(f"the commits of {doubled} returned to two handlers")
        if not moved == receipts == self._enqueued:
            wrong.append(f"{self._enqueued} enqueued, {moved} there, {receipts} receipts")
        return wrong


def _is_done(store: Store) -> bool:
    try:
        totals = store.totals()
    except Unavailable:
        return False
    return all(state in ENDED_STATES or count == 0 for state, count in totals.counts.items())
