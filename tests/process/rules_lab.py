"""Worker processes that are killed at random moments while the rules are at work, and started again.

Each rule is a part: what it asks for before and between the kills, what must hold afterwards.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from leasemill.errors import NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, Job, JobState
from leasemill.store.base import Store
from leasemill.store.opening import open_store
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until
from tests.process import rules_app, rules_audit
from tests.process.rules_app import Flavour, app, flavour_of, gate
from tests.process.rules_audit import Records, group_name

WORKERS = 4
CONCURRENCY = 4
AT_START = 0.1
"""Share of the kills that come while a worker starts, whatever it does then; the others while it works."""
LIFE_S = 0.3
SECONDS_FOR_EACH_KILL = 0.5
END_LIMIT_S = 120.0
PAGE = 1_000


@dataclass(frozen=True)
class Size:
    """How much there is to do, and over which time it is due."""

    kills: int
    groups: int
    members: int

    @property
    def over_s(self) -> float:
        return self.kills * SECONDS_FOR_EACH_KILL


class Part(Protocol):
    """One rule."""

    name: str

    def feed(self, kill: int, kills: int) -> None:
        """Before the first kill (0) and after each: add work."""

    def settle(self) -> None:
        """After the last kill, as often as needed: what an operator does, so that everything can end."""

    def has_settled(self) -> bool: ...

    def expected(self, records: Records) -> Iterator[str]:
        """The ids of its jobs."""

    def wrong(self, records: Records) -> Iterator[str]: ...

    def summary(self, records: Records) -> str: ...


class GroupsPart:
    """Groups of every flavour, made by jobs that are killed too."""

    name = "groups"

    def __init__(self, store: Store, folder: Path, draw: random.Random, size: Size) -> None:
        self._store = store
        self._folder = folder
        self._draw = draw
        self._size = size
        self._count = size.groups
        self._mended: set[str] = set()
        self._cancelled: set[str] = set()

    def feed(self, kill: int, kills: int) -> None:
        if kill == 0:
            rules_app.produce.enqueue_many(
                rules_app.produce.options(job_id=f"produce-{number:03}").call(
                    number, self._size.members, self._size.over_s
                )
                for number in range(self._count)
            )
        else:
            self._cancel_some(kill / kills)
            self._mend()

    def settle(self) -> None:
        for number in range(self._count):
            if flavour_of(number) is Flavour.CANCELLED:
                self._cancel(group_name(number))
        self._mend()

    def has_settled(self) -> bool:
        wanted = Counter(flavour_of(number) for number in range(self._count))
        return len(self._mended) == wanted[Flavour.REDRIVEN] and len(self._cancelled) == wanted[Flavour.CANCELLED]

    def _cancel_some(self, share: float) -> None:
        for number in range(self._count):
            if flavour_of(number) is Flavour.CANCELLED and rules_app.share(f"{number}") < share:
                self._cancel(group_name(number))

    def _cancel(self, name: str) -> None:
        if name in self._cancelled:
            return
        with suppress(NotFound):  # its producer has not made it yet
            self._store.cancel_group(name, by="lab", reason="in the middle")
            self._cancelled.add(name)

    def _mend(self) -> None:
        """Redrive members that failed, when their group is over."""
        for number in range(self._count):
            name = group_name(number)
            if flavour_of(number) is not Flavour.REDRIVEN or name in self._mended:
                continue
            view = self._store.group(name)
            if view is not None and view.is_over:
                (self._folder / gate(name)).touch()
                self._store.redrive(c.JobFilter(group=name), by="lab", reason="mended")
                self._mended.add(name)

    def expected(self, records: Records) -> Iterator[str]:
        for number in range(self._count):
            yield from rules_audit.ids_of_group(number, self._size.members, records)

    def wrong(self, records: Records) -> Iterator[str]:
        yield from rules_audit.groups(records, self._count)

    def summary(self, records: Records) -> str:
        members = sum(view.total for view in records.groups.values())
        callbacks = sum(job.spec.queue == "callbacks" for job in records.jobs.values())
        return f"{len(records.groups)} groups, {members} members, {callbacks} callbacks, each once"


@dataclass
class Outcome:
    kills: int
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
        made: dict[str, Part] = {"groups": GroupsPart(self.store, folder, self._draw, size)}
        self.parts = [made[name] for name in parts]

    def run(self) -> Outcome:
        begun, kills = time.monotonic(), self._size.kills
        self._feed(0, kills)
        workers = [self._worker() for _ in range(WORKERS)]
        for kill in range(1, kills + 1):
            place = self._draw.randrange(WORKERS)
            self._kill(workers[place])
            workers[place] = self._worker()
            self._feed(kill, kills)
        wait_until(self._is_over, "everything to end", END_LIMIT_S, every_s=0.2)
        for worker in workers:
            worker.end()
        records = self.records()
        return Outcome(
            kills,
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
        return Records({job.spec.id: job for job in self._jobs()}, {view.id: view for view in self._groups()})

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
            environment={"PYTHONPATH": IMPORT_PATH},
        )
        return self._cleaning.enter_context(worker)

    def _kill(self, worker: WorkerProcess) -> None:
        if self._draw.random() >= AT_START:
            self._await_started(worker)
        time.sleep(self._draw.uniform(0, LIFE_S))
        worker.check_running()
        worker.kill()

    def _await_started(self, worker: WorkerProcess) -> None:
        def has_started() -> bool:
            worker.check_running()
            return worker.has_logged("worker started")

        wait_until(has_started, f"{worker.id} to start")

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
