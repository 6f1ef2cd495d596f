"""A server that is killed or restarted again and again, while producers and workers use it; then the audit.

Every job moves money once: its commit enqueues one receipt, and its handler leaves a mark outside when the commit
returned. What happened is read from the folder itself, without a server.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct, json

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.demo.server import ServerProcess
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, Job, JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.http.watch import POLL_S
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until

MARKS_VARIABLE: Final = "LEASEMILL_TEST_MARKS"
LEASE_VARIABLE: Final = "LEASEMILL_TEST_LEASE_S"
LEASE_S: Final = float(os.environ.get(LEASE_VARIABLE, "5"))
RESTART_LEASE_S: Final = 60.0
"""Longer than a restart takes on the busiest machine: no lease expires for it."""
LIMIT_S: Final = 120.0
BATCH: Final = 5
PAGE: Final = 1_000
LINES: Final = 2

app = App()


@app.job(queue="money", lease=LEASE_S)
def moves(ctx: Context, number: int) -> None:
    _mark("began", number, ctx.worker)
    time.sleep(0.01)
    with ctx.commit() as tx:
        tx.enqueue(receipt, number)
    _mark("committed", number, ctx.worker)


@app.job(queue="receipts", lease=LEASE_S)
async def receipt(number: int) -> int:
    return number


class Mark(NamedTuple):
    what: str
    number: str
    worker: str


def _mark(what: str, number: int, worker: str) -> None:
    fd = os.open(os.environ[MARKS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{what} {number} {worker}\n".encode())  # one short line: appended whole
    finally:
        os.close(fd)


class HttpOutcome(Struct, frozen=True):
    jobs: int
    took_s: float
    unavailable: int
    """Enqueues that had to be repeated by their producer."""
    wrong: tuple[str, ...]


class HttpLab:
    """Producers go on as long as the server is disturbed."""

    lease_s = LEASE_S

    def __init__(self, folder: Path, times: int, workers: int, seed: int) -> None:
        self._folder = folder
        self._times = times
        self._workers = [f"worker-{number}" for number in range(workers)]
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
            for name in self._workers:
                cleaning.enter_context(self._worker(server.url, name))
            producer = threading.Thread(target=self._produce, args=(server.url,), daemon=True)
            producer.start()
            cleaning.callback(self._stop.set)
            self._disturb(server)
            self._stop.set()
            producer.join(LIMIT_S)
            with open_store(server.url) as store:
                wait_until(lambda: _is_done(store), "all jobs to end", LIMIT_S, every_s=0.1)
        return HttpOutcome(self._enqueued, time.monotonic() - began, self._unavailable, tuple(self._wrong()))

    def _disturb(self, server: ServerProcess) -> None:
        for _ in range(self._times):
            time.sleep(self._random.uniform(0.1, 0.7))
            server.kill()
            server.start()

    def _worker(self, url: str, name: str) -> WorkerProcess:
        return WorkerProcess(
            "tests.process.http_lab:app",
            url=url,
            log=self._folder / f"{name}.log",
            worker_id=name,
            options=["--concurrency", "4"],
            folder=self._folder,
            environment={
                MARKS_VARIABLE: str(self._marks),
                LEASE_VARIABLE: str(self.lease_s),
                "PYTHONPATH": IMPORT_PATH,
            },
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

    def _all_jobs(self, store: Store) -> Iterator[Job]:
        after: int | None = 0
        while after is not None:
            page = store.jobs(limit=PAGE, after=after)
            yield from page.jobs
            after = page.after

    def _wrong_job(self, job: Job) -> str | None:
        committed = [one for one in job.executions if one.committed_at is not None]
        if job.state is not JobState.SUCCEEDED or len(committed) != 1:
            return f"{job.spec.id} is {job.state} with {len(committed)} commits"
        return None

    def _wrong(self) -> list[str]:
        """What is not as it must be: nothing lost, nothing doubled."""
        with open_store(self._url) as store:
            jobs = list(self._all_jobs(store))
        wrong = [sentence for job in jobs if (sentence := self._wrong_job(job)) is not None]
        receipts = sum(job.spec.queue == "receipts" for job in jobs)
        moved = len(jobs) - receipts
        if doubled := self._doubled("committed"):
            wrong.append(f"the commits of {doubled} returned to two handlers")
        if not moved == receipts == self._enqueued:
            wrong.append(f"{self._enqueued} enqueued, {moved} there, {receipts} receipts")
        return wrong

    def _doubled(self, what: str) -> list[str]:
        return [number for number, times in Counter(mark.number for mark in self._marked(what)).items() if times > 1]

    def _marked(self, what: str) -> list[Mark]:
        if not self._marks.exists():
            return []
        marks = [Mark(*line.split()) for line in self._marks.read_text().splitlines()]
        return [mark for mark in marks if mark.what == what]


class RestartLab(HttpLab):
    """The server is asked to end, as in a deployment, and started again on its port. Nothing may run twice for that,
    and each worker must be at work again within a poll of the server's being ready."""

    lease_s = RESTART_LEASE_S

    def __init__(self, folder: Path, times: int, workers: int, seed: int) -> None:
        super().__init__(folder, times, workers, seed)
        self._troubles: list[str] = []
        self.back_s: list[float] = []
        """For each restart, until every worker had finished a job on the new server."""

    def _disturb(self, server: ServerProcess) -> None:
        self._await_all_at_work("the workers to begin", LIMIT_S)
        for _ in range(self._times):
            time.sleep(self._random.uniform(0.1, 0.7))
            if (code := server.terminate()) != 0:
                self._troubles.append(f"the server ended with {code}")
            server.start()
            ready_at = time.monotonic()
            self._await_all_at_work("every worker to be at work again", POLL_S)
            self.back_s.append(time.monotonic() - ready_at)

    def _await_all_at_work(self, what: str, limit_s: float) -> None:
        seen = len(self._marked("committed"))
        wait_until(
            lambda: {mark.worker for mark in self._marked("committed")[seen:]} == set(self._workers),
            what,
            limit_s,
            0.02,
        )

    def _wrong(self) -> list[str]:
        """A job that was claimed ahead and given back before it began did not run."""
        again = [f"jobs {doubled} ran twice"] if (doubled := self._doubled("began")) else []
        return [*super()._wrong(), *again, *self._troubles, *self._noise()]

    def _noise(self) -> list[str]:
        """Workers may say once that the server is away, and once that it is back."""
        wrong = []
        for name in self._workers:
            lines = [json.decode(line) for line in (self._folder / f"{name}.log").read_bytes().splitlines()]
            said = [line["message"] for line in lines if line["level"] != "info" or line["logger"] == "httpx"]
            if len(said) > LINES * self._times:
                wrong.append(f"{name} logged {len(said)} lines for {self._times} restarts, such as {said[:4]}")
        return wrong


def _is_done(store: Store) -> bool:
    try:
        totals = store.totals()
    except Unavailable:
        return False
    return all(state in ENDED_STATES or count == 0 for state, count in totals.counts.items())
