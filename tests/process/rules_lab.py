"""Worker processes that are killed at random moments while the rules are at work, and started again; some are stopped
for longer than their leases before, go on, and report late."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from leasemill.api.schedule_commands import list_schedules
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, Job, JobState
from leasemill.store.factory import open_store
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until
from tests.process import rules_audit
from tests.process.rules_app import LEASE_S, RULES_VARIABLE, app
from tests.process.rules_audit import Records
from tests.process.rules_parts import BacklogPart, GroupsPart, LimitsPart, Part, SchedulesPart, Size

CONCURRENCY = 4
AT_START = 0.1
"""Share of the kills that come while a worker starts, whatever it does then; the others while it works."""
LIFE_S = 0.3
STOPPED = 0.1
"""Share of the kills before which the worker is stopped, at work, for longer than its leases, and goes on."""
END_LIMIT_S = 120.0
PAGE = 1_000


@dataclass
class Outcome:
    kills: int
    stops: int
    expired_leases: int
    jobs: int
    took_s: float
    wrong: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)


class RulesLab:
    """A store, the workers on it, and the parts that are switched on."""

    def __init__(
        self, url: str, folder: Path, seed: int, parts: Sequence[str], size: Size, cleaning: ExitStack
    ) -> None:
        self._size = size
        self.store = open_store(url)
        cleaning.callback(self.store.close)
        cleaning.enter_context(app.bound_to(self.store))
        self._url = url
        self._folder = folder
        self._cleaning = cleaning
        self._draw = random.Random(seed)
        self._started = 0
        self._stops = 0
        made: tuple[Part, ...] = (
            GroupsPart(self.store, folder, size),
            LimitsPart(self._draw),
            BacklogPart(),
            SchedulesPart(self.store),
        )
        self.parts = [part for part in made if part.name in parts]

    def run(self) -> Outcome:
        begun, kills = time.monotonic(), self._size.kills
        self._feed(0, kills)
        workers = [self._worker() for _ in range(self._size.workers)]
        for kill in range(1, kills + 1):
            place = self._draw.randrange(len(workers))
            if self._draw.random() < STOPPED:
                self._stop(workers[place])
            self._kill(workers[place])
            workers[place] = self._worker()
            self._feed(kill, kills)
        for worker in workers:
            worker.await_started()
        wait_until(self._is_over, "everything to end", END_LIMIT_S, every_s=0.2)
        for worker in workers:
            worker.end()
        records = self.records()
        return Outcome(
            kills,
            self._stops,
            records.expired_leases,
            len(records.jobs),
            time.monotonic() - begun,
            self.wrong(records),
            [part.summary(records) for part in self.parts],
        )

    def wrong(self, records: Records) -> list[str]:
        expected = [job_id for part in self.parts for job_id in part.expected(records)]
        return [
            *rules_audit.ids(records, expected),
            *rules_audit.ends(records),
            *(sentence for part in self.parts for sentence in part.wrong(records)),
        ]

    def records(self) -> Records:
        return Records(
            {job.spec.id: job for job in self._jobs()},
            {view.id: view for view in self._groups()},
            {schedule.spec.name: schedule for schedule in list_schedules(self.store)},
        )

    def _feed(self, kill: int, kills: int) -> None:
        for part in self.parts:
            part.feed(kill, kills)

    def _worker(self) -> WorkerProcess:
        self._started += 1
        name = f"worker-{self._started:04}"
        worker = WorkerProcess(
            "tests.process.rules_app:app",
            url=self._url,
            log=self._folder / f"{name}.log",
            worker_id=name,
            options=["--concurrency", str(CONCURRENCY)],
            folder=self._folder,
            environment={"PYTHONPATH": IMPORT_PATH, RULES_VARIABLE: ",".join(part.name for part in self.parts)},
        )
        return self._cleaning.enter_context(worker)

    def _kill(self, worker: WorkerProcess) -> None:
        if self._draw.random() >= AT_START:
            worker.await_started()
        time.sleep(self._draw.uniform(0, LIFE_S))
        worker.check_running()
        worker.kill()

    def _stop(self, worker: WorkerProcess) -> None:
        worker.await_started()
        worker.stop()
        self._stops += 1
        time.sleep(1.5 * LEASE_S)
        worker.resume()

    def _is_over(self) -> bool:
        for part in self.parts:
            part.settle()
        counts = self.store.totals().counts
        unfinished = sum(counts[state] for state in JobState if state not in ENDED_STATES)
        return not unfinished and all(part.has_settled() for part in self.parts)

    def _jobs(self) -> Iterator[Job]:
        after: int | None = 0
        while after is not None:
            page = self.store.jobs(c.JobFilter(), limit=PAGE, after=after)
            yield from page.jobs
            after = page.after

    def _groups(self) -> Iterator[c.GroupView]:
        after = ""
        while page := self.store.groups(limit=PAGE, after=after):
            yield from page
            after = page[-1].id
