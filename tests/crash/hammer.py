"""Real processes on one folder, killed one after the other; and the audit of every answer they got.

`python -m tests.crash.hammer FOLDER JOURNAL NAME` is one of them: it enqueues, claims, commits, acks and fails until it
is killed, and notes every answer in its journal after it got it. The folder keeps its old segments, so that the audit
reads all that ever happened.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, ExecutionCommitted, ExecutionDone, JobEnqueued
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply
from leasemill.kernel.model import MILLISECOND, JobSpec, Policy
from leasemill.kernel.state import State
from leasemill.store.file.format import SEGMENT_HEADER_BYTES, Frame, read_frame
from leasemill.store.file.options import FileOptions
from leasemill.store.file.recovery import BUILDER_LOCK
from leasemill.store.file.store import FileStore
from tests.crash.lab import state_of

OPTIONS = FileOptions(segment_bytes=64 * 1024, snapshot_bytes=128 * 1024, retain_count=1_000, keep_segments=True)
LEASES = Policy(lease_ttl_us=400 * MILLISECOND, max_retries=2, max_expirations=1_000)
PROCESSES = 4
LONGEST_RECOVERY_S = 20.0


# One of the processes ------------------------------------------------------------------------------------------


class Journal:
    """The answers this process got, written down as they came."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *what: str) -> None:
        os.write(self._fd, json.dumps(what).encode() + b"\n")


def hammer(folder: Path, journal: Journal, name: str) -> None:
    source = random.Random(name)
    with FileStore(folder, options=OPTIONS) as store:
        number = 0
        while True:
            try:
                number += 1
                enqueue(store, journal, [f"{name}-{number}-{one}" for one in range(source.randint(1, 3))], source)
                for lease in store.claim(name, ["q"], 3):
                    work(store, journal, lease, source)
            except Unavailable as error:
                journal.note("unavailable", str(error))
            time.sleep(0.002)


def enqueue(store: FileStore, journal: Journal, ids: list[str], source: random.Random) -> None:
    jobs = [JobSpec(one, "q", "k", lane=source.choice((None, "a", "b")), policy=LEASES) for one in ids]
    if store.totals().seq and source.random() < 0.5 and store.due_in(["q"]) == 0:
        jobs = jobs[:1]
    for outcome in store.run(c.Enqueue(jobs, are_new=True)):
        journal.note("enqueued", outcome.job_id)


def work(store: FileStore, journal: Journal, lease: c.Lease, source: random.Random) -> None:
    job_id, token = lease.job.id, lease.token
    store.start([c.StartReport(job_id, token)])
    way = source.random()
    if way < 0.1:
        store.nack([c.NackReport(job_id, token, "it broke", delay_us=0)])
        return
    if way < 0.6:
        committed = store.commit(job_id, token, followups=[c.Followup("r", "k")])
        if isinstance(committed, c.Lost):
            return
        journal.note("committed", job_id, token)
    (acked,) = store.ack([c.AckReport(job_id, token)])
    if isinstance(acked, c.Acked):
        journal.note("acked", job_id, token)


# Those who kill them -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Toll:
    """What the killing came to."""

    kills: int = 0
    jobs: int = 0
    commits: int = 0
    segments: int = 0
    slowest_recovery_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.jobs} jobs, 0 lost, {self.commits} commits, 0 doubled, "
            f"{self.segments} segments, slowest recovery {self.slowest_recovery_s:.2f} s"
        )


class Killing:
    """Starts the processes, kills one after the other, and starts another in its place."""

    def __init__(self, work: Path, seed: int) -> None:
        self._folder, self._journals = work / "jobs", work / "journals"
        self._journals.mkdir(parents=True)
        self._random = random.Random(seed)
        self._count = 0
        self.toll = Toll()

    def run(self, kills: int) -> Toll:
        running = [self._start() for _ in range(PROCESSES)]
        try:
            self._await_progress(since_bytes=0)
            while self.toll.kills < kills:
                index = self._random.randrange(PROCESSES)
                time.sleep(self._random.uniform(0.02, 0.4))
                self._kill(running[index])
                running[index] = self._start()
        finally:
            for process in running:
                process.kill()
                process.wait()
        with (self._folder / BUILDER_LOCK).open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # a builder outlives the process that started it
            self._audit()
        return self.toll

    def _start(self) -> subprocess.Popen[bytes]:
        self._count += 1
        name = f"p{self._count}"
        arguments = [str(self._folder), str(self._journals / name), name]
        return subprocess.Popen([sys.executable, "-m", "tests.crash.hammer", *arguments])

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            raise AssertionError(f"a process ended by itself, with {process.returncode}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.toll.kills += 1
        self._await_progress(self._journalled())

    def _await_progress(self, since_bytes: int) -> None:
        """Those who are left go on without a manual step."""
        begun = time.monotonic()
        while self._journalled() <= since_bytes:
            if time.monotonic() - begun > LONGEST_RECOVERY_S:
                raise AssertionError(f"nobody got on for {LONGEST_RECOVERY_S} s")
            time.sleep(0.001)
        self.toll.slowest_recovery_s = max(self.toll.slowest_recovery_s, time.monotonic() - begun)

    def _journalled(self) -> int:
        return sum(path.stat().st_size for path in self._journals.iterdir())

    # The audit

    def _audit(self) -> None:
        answers = list(self._answers())
        enqueued, effects = Counter[str](), Counter[str]()
        by_token: set[tuple[str, str]] = set()
        history = list(every_event(self._folder))
        for event in history:
            if isinstance(event, JobEnqueued):
                enqueued[event.job.id] += 1
            if isinstance(event, ExecutionCommitted):
                enqueued.update(job.id for job in event.followups)
            if isinstance(event, ExecutionCommitted | ExecutionDone):
                by_token.add((event.job_id, event.token))
        for job_id, _ in by_token:
            effects[job_id] += 1
        self._refuse("lost", [what for what in answers if what[0] == "enqueued" and what[1] not in enqueued])
        self._refuse(
            "lost",
            [what for what in answers if what[0] in {"committed", "acked"} and (what[1], what[2]) not in by_token],
        )
        self._refuse("doubled", [job_id for job_id, count in effects.items() if count > 1])
        self._refuse("unavailable", [what for what in answers if what[0] == "unavailable"])
        with FileStore(self._folder, options=OPTIONS) as store:
            self._refuse("broken", violations(state_of(store)))
            # opening records what expired meanwhile (W15): the events are read after it
            if digest(state_of(store)) != digest(replayed(every_event(self._folder))):
                raise AssertionError("the state is another than all events give")
        self.toll.segments = len(segments(self._folder))
        self.toll.jobs, self.toll.commits = len(enqueued), len(effects)

    def _refuse(self, what: str, found: Sequence[object]) -> None:
        if found:
            raise AssertionError(f"{len(found)} {what}, the first: {found[0]}")

    def _answers(self) -> Iterator[tuple[str, ...]]:
        for path in sorted(self._journals.iterdir()):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield tuple(json.loads(line))


# All that ever happened ----------------------------------------------------------------------------------------


def every_event(folder: Path) -> Iterator[AnyEvent]:
    """Every event from the beginning, from the segments in use and those that were put aside."""
    position = 0
    for path in segments(folder):
        if int(path.name.split("-")[1], 16) != position:
            raise AssertionError(f"there is no segment for position {position}")
        content, first = path.read_bytes(), position
        while isinstance(found := read_frame(content, SEGMENT_HEADER_BYTES + position - first, position), Frame):
            position = found.end
            if found.body:
                yield from found.events()


def segments(folder: Path) -> list[Path]:
    paths = [*folder.glob("segment-*-1"), *folder.glob("archive/segment-*-1")]
    return sorted(paths, key=lambda path: path.name)


def replayed(events: Iterator[AnyEvent]) -> State:
    state = State()
    for event in events:
        apply(state, event)
    return state


if __name__ == "__main__":
    hammer(Path(sys.argv[1]), Journal(Path(sys.argv[2])), sys.argv[3])
