"""Workers of a shop that are killed at random moments, and zombies that wake up in the middle of a commit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, Job, JobState, Verb
from leasemill.store.factory import open_store
from leasemill.store.postgres.admin.migrate import migrate
from leasemill.testing.postgres import PostgresServer
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until
from tests.process.shops import money

SHOPS = ("psycopg", "sqlalchemy", "asyncpg", "django")
WORKERS = 3
CONCURRENCY = 6
ORDERS_PER_KILL = 12
AT_START = 0.1
"""Share of the kills that come while a worker starts, whatever it does then; the others while it works."""
LIFE_S = 0.4
END_LIMIT_S = 120.0
PAGE = 1_000


@dataclass
class Outcome:
    orders: int
    kills: int
    zombies: int
    expired_leases: int
    refused_commits: int
    took_s: float
    wrong: list[str] = field(default_factory=list)


class ShopLab:
    """One shop in a database of its own."""

    def __init__(self, server: PostgresServer, shop: str, folder: Path, seed: int, cleaning: ExitStack) -> None:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"drop database if exists shop_{shop}".encode())
            admin.execute(f"create database shop_{shop}".encode())
        self._url = server.url(f"shop_{shop}", tcp=True)
        self._module = f"tests.process.shops.{shop}_shop"
        self._folder = folder
        self._cleaning = cleaning
        self._draw = random.Random(seed)
        self._started = 0
        self._zombies: set[str] = set()
        self.mine: psycopg.Connection[Any] = cleaning.enter_context(psycopg.connect(self._url, autocommit=True))
        migrate(self.mine, "leasemill")
        money.open_shop(self.mine)
        self._producer = self._start_producer()
        self._store = open_store(self._url)
        cleaning.callback(self._store.close)

    def run(self, kills: int, zombies: int, workers_at_once: int = WORKERS) -> Outcome:
        begun = time.monotonic()
        workers = [self._worker() for _ in range(workers_at_once)]
        for _ in range(kills):
            self._place(ORDERS_PER_KILL)
            place = self._draw.randrange(workers_at_once)
            self._kill(workers[place])
            workers[place] = self._worker()
        for worker in workers:
            worker.await_started()
        for _ in range(zombies):
            self._place(1, sleepy=1)
            self._wake_a_zombie(workers)
        wait_until(self._is_over, "every job to end", END_LIMIT_S, every_s=0.2)
        for worker in workers:
            worker.end()
        jobs = self._jobs()
        executions = [one for job in jobs for one in job.executions]
        return Outcome(
            money.orders(self.mine),
            kills,
            zombies,
            sum(one.finished_at is not None and one.error is None and not one.committed_at for one in executions),
            sum(refusal.verb is Verb.COMMIT for job in jobs for refusal in job.refusals),
            time.monotonic() - begun,
            [*money.wrong(self.mine), *self._wrong_jobs(jobs)],
        )

    def _wrong_jobs(self, jobs: list[Job]) -> list[str]:
        expected = 2 * money.orders(self.mine)
        failed = [f"job {job.spec.id} ({job.spec.kind}) is {job.state}" for job in jobs if job.state != "succeeded"]
        return failed + ([] if len(jobs) == expected else [f"there are {len(jobs)} jobs, and should be {expected}"])

    # The producer

    def _start_producer(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "LEASEMILL_URL": self._url}
        producer = subprocess.Popen(
            [sys.executable, "-m", "tests.process.shops.producer", self._module, "order"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._cleaning.enter_context(producer)
        self._cleaning.callback(producer.kill)
        return producer

    def _place(self, orders: int, *, sleepy: int = 0) -> None:
        sending, receiving = self._producer.stdin, self._producer.stdout
        assert sending is not None
        assert receiving is not None
        sending.write(f"{orders} {sleepy}\n")
        sending.flush()
        if not receiving.readline():
            raise AssertionError("the producer has died: its error is printed above")

    # Workers

    def _worker(self) -> WorkerProcess:
        self._started += 1
        name = f"worker-{self._started:04}"
        worker = WorkerProcess(
            f"{self._module}:app",
            url=self._url,
            log=self._folder / f"{name}.log",
            worker_id=name,
            options=["--concurrency", str(CONCURRENCY)],
            folder=self._folder,
            environment={"PYTHONPATH": IMPORT_PATH, "LEASEMILL_URL": self._url},
        )
        return self._cleaning.enter_context(worker)

    def _kill(self, worker: WorkerProcess) -> None:
        if self._draw.random() >= AT_START:
            worker.await_started()
        time.sleep(self._draw.uniform(0, LIFE_S))
        worker.check_running()
        worker.kill()

    def _wake_a_zombie(self, workers: list[WorkerProcess]) -> None:
        """A worker has stopped itself before its COMMIT; it goes on when another one has the job."""

        def stopped() -> WorkerProcess | None:
            return next((one for one in workers if one.is_stopped), None)

        wait_until(lambda: stopped() is not None, "a worker to stop in its commit")
        zombie = stopped()
        assert zombie is not None
        wait_until(lambda: self._taken_over() is not None, "another worker to take over")
        job_id = self._taken_over()
        assert job_id is not None
        self._zombies.add(job_id)
        zombie.resume()
        # A `def` handler goes on to its COMMIT; an async one may be stopped before it.
        wait_until(lambda: zombie.has_logged("lease lost", job=job_id), "the zombie to notice")

    def _taken_over(self) -> str | None:
        """The next run may have ended already."""
        states = frozenset({JobState.LEASED, JobState.SUCCEEDED})
        latest = self._store.jobs(c.JobFilter(states=states), limit=PAGE, newest_first=True).jobs
        ids = {job.spec.id for job in latest if job.attempt > 1 and b'"is_sleepy":true' in job.spec.payload}
        return next(iter(ids - self._zombies), None)

    def _is_over(self) -> bool:
        counts = self._store.totals().counts
        return not sum(counts[state] for state in JobState if state not in ENDED_STATES)

    def _jobs(self) -> list[Job]:
        jobs: list[Job] = []
        after: int | None = 0
        while after is not None:
            page = self._store.jobs(c.JobFilter(), limit=PAGE, after=after)
            jobs += page.jobs
            after = page.after
        return jobs
