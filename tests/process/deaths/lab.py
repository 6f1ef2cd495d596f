"""Workers are killed while others stand still: their jobs run again at once, and nobody who lives is declared dead."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from leasemill.demo.workers import holds_no_lock
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDED_STATES, AbortReason, Job, JobState
from leasemill.store.factory import open_store
from leasemill.store.postgres.driver.url import parse_url
from tests.lab.processes import TookTooLong, wait_until
from tests.process.deaths import audit
from tests.process.deaths.app import EFFECTS, KINDS, LANES, app, read_trails
from tests.process.deaths.audit import Evidence, Held, Kill, Stop, spread
from tests.process.deaths.fleet import WORKERS, Alive, BareFleet, Ground, SupervisedFleet, stop_safely

FORMS: Final = ("bare", "supervised")
DEFAULT_LEASE_S: Final = 30.0
BAR_S: Final = 2.0
"""From a kill to the next run's start, p99."""
UNFINISHED: Final = 16
"""Jobs there are to do at a time: half of the slots stay free, so that what is measured is not a wait for one."""
SHARES: Final = (4, 4, 1, 1)
"""Of the kinds, in their order."""
APART_S: Final = (0.4, 1.4)
TOGETHER: Final = 0.15
"""Share of the kills that come at the same moment as the one before."""
AT_START: Final = 0.1
"""Share of the kills that come while a worker starts, where one does."""
YOUNG: Final = 0.15
"""Share of the kills of children that may have started just now."""
LONG_STOP_S: Final = 1.2 * DEFAULT_LEASE_S
END_LIMIT_S: Final = 120.0
LEAVE_LIMIT_S: Final = 30.0
PAGE: Final = 1_000


@dataclass(frozen=True)
class Size:
    kills: int
    stops: int
    stop_s: tuple[float, float] = (1.0, 5.0)
    """How long those take, at least and at most."""
    long_stops: int = 0
    """More of them, for longer than the lease."""
    grown_s: float = 6.0
    """A supervisor takes it for a crash loop if all that it starts die at once: most live for as long as this."""
    ends: int = 0
    """How many times everything is killed at once; a supervisor as often by itself."""


@dataclass
class Outcome:
    """What came of it."""

    form: str
    size: Size
    jobs: int
    held: list[Held]
    expired: int
    took_s: float
    answers_s: list[float]
    """How long the store took to answer the lab, all along: a machine that stands still shows here too."""
    slowest: list[str]
    """What happened to those leases that took longest."""
    wrong: list[str] = field(default_factory=list)

    def started_s(self, *, is_alone: bool = True) -> list[float]:
        """Of jobs that wait for nobody's place."""
        return [
            one.started_s
            for one in self.held
            if one.started_s is not None and not one.is_limited and one.kill.is_alone is is_alone
        ]

    def summary(self) -> Iterator[str]:
        alone = [one for one in self.held if one.kill.is_alone]
        committed = sum(one.execution.committed_at is not None for one in self.held)
        again = sum(one.started_s is None for one in self.held) - committed
        yield f"{len(self.held)} leases were held by those killed, {self.expired} leases expired"
        yield f"of those held {committed} had committed, {again} were claimed by one that was killed before it started"
        yield f"from the kill to the record of the death: {spread([one.recorded_s for one in alone])}"
        yield f"from the kill to the next run's start:    {spread(self.started_s())}"
        yield f"the store answered the lab within:        {spread(self.answers_s)}"
        if self.size.ends:
            together = spread(self.started_s(is_alone=False))
            yield f"where everybody was killed at once, with the time to start others: {together}"


class DeathsLab:
    """A store and four workers on it."""

    def __init__(self, url: str, folder: Path, form: str, seed: int, cleaning: ExitStack) -> None:
        store = open_store(url)
        cleaning.callback(store.close)
        cleaning.enter_context(app.bound_to(store))
        self._ground = Ground(url, folder, store, cleaning)
        self._ground.trails.mkdir()
        self._store = store
        self._form = form
        self._fleet = SupervisedFleet(self._ground) if form == "supervised" else BareFleet(self._ground)
        self._draw = random.Random(seed)
        self._expected: list[str] = []
        self._kills: list[Kill] = []
        self._stops: list[Stop] = []
        self._standing: set[int] = set()
        self._wrong: list[str] = []
        self._answers_s: list[float] = []
        self._mine: psycopg.Connection[Any] | None = None
        if not url.startswith("file:"):
            self._mine = cleaning.enter_context(psycopg.connect(parse_url(url)[0], autocommit=True))
            self._mine.execute(EFFECTS.encode())

    def run(self, size: Size) -> Outcome:
        begun = time.monotonic()
        self._fleet.start()
        self._fleet.await_alive()
        stopping = threading.Thread(target=self._stop_some, args=(size, random.Random(self._draw.random())))
        stopping.start()
        try:
            self._kill_some(size.kills, size.grown_s)
            while stopping.is_alive():
                self._feed()
                time.sleep(0.05)
        finally:
            stopping.join()
        for _ in range(size.ends):
            self._end_all()
        try:
            wait_until(self._is_over, "every job to end", END_LIMIT_S, every_s=0.1)
        except TookTooLong as error:
            self._wrong.append(str(error))
        self._wrong += self._fleet.end()
        return self._outcome(size, time.monotonic() - begun)

    def _outcome(self, size: Size, took_s: float) -> Outcome:
        evidence = Evidence(
            self._expected,
            {job.spec.id: job for job in self._jobs()},
            read_trails(self._ground.trails),
            self._kills,
            self._stops,
            None if self._mine is None else self._mine.execute(b"select * from effects").fetchall(),
        )
        expired = sum(one.reason is AbortReason.EXPIRED for job in evidence.jobs.values() for one in job.executions)
        wrong = [*self._wrong, *audit.wrong(evidence)]
        held = audit.held(evidence)
        slowest = audit.slowest(evidence, held, BAR_S)
        return Outcome(self._form, size, len(evidence.jobs), held, expired, took_s, self._answers_s, slowest, wrong)

    # Work -------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Let there be something to do, and not too much."""
        asked_at = time.monotonic()
        counts = self._store.totals().counts
        unfinished = sum(counts[state] for state in JobState if state not in ENDED_STATES)
        calls = []
        for _ in range(UNFINISHED - unfinished):
            number = len(self._expected)
            (name,) = self._draw.choices(list(KINDS), SHARES)
            lane = f"lane-{self._draw.randrange(LANES)}" if name == "in-turn" else None
            calls.append(KINDS[name].options(job_id=f"{name}-{number:05}", lane=lane).call())
            self._expected.append(calls[-1].job_id)
        app.enqueue_many(calls)
        self._answers_s.append(time.monotonic() - asked_at)

    def _feed_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._feed()
            time.sleep(0.05)

    def _is_over(self) -> bool:
        counts = self._store.totals().counts
        return not sum(counts[state] for state in JobState if state not in ENDED_STATES)

    def _jobs(self) -> Iterator[Job]:
        after: int | None = 0
        while after is not None:
            page = self._store.jobs(c.JobFilter(), limit=PAGE, after=after)
            yield from page.jobs
            after = page.after

    # Kills ------------------------------------------------------------------------------------------------------

    def _kill_some(self, kills: int, grown_s: float) -> None:
        """One or two at a time; never one of the last two that work."""
        while (left := kills - len(self._kills)) > 0:
            self._feed_for(self._draw.uniform(*APART_S))
            alive = [one for one in self._fleet.alive() if one.pid not in self._standing]
            starting = [one for one in self._fleet.starting() if one.pid not in self._standing]
            count = min(left, 2 if self._draw.random() < TOGETHER else 1)
            if starting and len(alive) >= 2 and self._draw.random() < AT_START:
                self._kills.append(self._fleet.kill(self._draw.choice(starting)))
            elif len(victims := self._grown(alive, grown_s)) >= count and len(alive) >= count + 2:
                self._kills += [self._fleet.kill(one) for one in self._draw.sample(victims, count)]
            self._fleet.replace()

    def _grown(self, alive: list[Alive], grown_s: float) -> list[Alive]:
        least_s = grown_s if self._form == "supervised" and self._draw.random() >= YOUNG else 0.0
        return [one for one in alive if time.time() - one.started_at >= least_s]

    def _end_all(self) -> None:
        """Everything is killed at once; then the supervisor alone, whose children leave by themselves."""
        self._feed_for(1.0)
        self._kills += self._fleet.kill_all()
        self._fleet.start()
        self._fleet.await_alive()
        if not isinstance(self._fleet, SupervisedFleet):
            return
        self._feed_for(1.0)
        children = self._fleet.kill_supervisor()
        wait_until(
            lambda: not any(map(_is_there, children)), "the children of a killed supervisor to end", LEAVE_LIMIT_S
        )
        self._fleet.start()
        self._fleet.await_alive()

    # Stops ------------------------------------------------------------------------------------------------------

    def _stop_some(self, size: Size, draw: random.Random) -> None:
        """One at a time, in a thread."""
        lengths = [draw.uniform(*size.stop_s) for _ in range(size.stops)] + [LONG_STOP_S] * size.long_stops
        draw.shuffle(lengths)
        while lengths:
            time.sleep(draw.uniform(0.0, 0.5))
            candidates = self._fleet.alive()
            if len(candidates) < WORKERS:
                continue
            one = draw.choice(candidates)
            self._standing.add(one.pid)
            if stop_safely(one.pid, partial(holds_no_lock, self._ground.url, self._fleet.sessions_of(one))):
                at, length = time.monotonic(), lengths.pop()
                time.sleep(length)
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGCONT)
                self._stops.append(Stop(one.worker, one.pid, at, time.monotonic()))
            self._standing.discard(one.pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
