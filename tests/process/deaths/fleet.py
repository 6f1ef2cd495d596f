"""Four workers on one machine, as processes of their own or as children of a supervisor, to be killed and stopped."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from leasemill.store.base import Store
from leasemill.store.worker_records import records
from leasemill.worker.identity import STARTED_FIELD
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until
from tests.process.deaths.app import TRAILS_VARIABLE
from tests.process.deaths.audit import Kill

TARGET: Final = "tests.process.deaths.app:app"
WORKERS: Final = 4
CONCURRENCY: Final = 8
ID: Final = "--worker-id="
RETRY_S: Final = 0.007


class Ground(NamedTuple):
    """Where it takes place."""

    url: str
    folder: Path
    store: Store
    cleaning: ExitStack

    @property
    def trails(self) -> Path:
        return self.folder / "trails"

    def start(self, name: str, options: Sequence[str]) -> WorkerProcess:
        worker = WorkerProcess(
            TARGET,
            url=self.url,
            log=self.folder / f"{name}.log",
            worker_id=name,
            options=["--concurrency", str(CONCURRENCY), *options],
            folder=self.folder,
            environment={"PYTHONPATH": IMPORT_PATH, TRAILS_VARIABLE: str(self.trails)},
        )
        return self.cleaning.enter_context(worker)


class Alive(NamedTuple):
    """A worker's process. One that has published nothing is starting, and has no instance."""

    pid: int
    worker: str
    instance: str = ""
    started_at: float = 0.0


class Born(NamedTuple):
    """A process, of all that ever have its id: a busy machine uses one again within minutes."""

    pid: int
    started: bytes


def born_as(pid: int) -> Born | None:
    """None: there is no such process."""
    try:
        return Born(pid, Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[STARTED_FIELD])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Fleet(ABC):
    """Workers, of which those that were killed are replaced."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._number = 0
        self._killed: set[Born] = set()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def processes(self) -> dict[int, str]:
        """Those that run a worker, or are about to: process ids and the workers' ids."""

    @abstractmethod
    def replace(self) -> None:
        """Let there be as many workers as at the beginning again."""

    @abstractmethod
    def kill_all(self) -> list[Kill]:
        """Everything at once, so that nobody is left to notice."""

    @abstractmethod
    def end(self) -> list[str]:
        """Stop what runs; what is wrong with that."""

    @abstractmethod
    def sessions_of(self, one: Alive) -> str:
        """What PostgreSQL calls its sessions."""

    def alive(self) -> list[Alive]:
        """Those at work."""
        pids = {pid for pid in self.processes() if not self._is_killed(pid)}
        return [
            Alive(one.pid, one.worker, one.instance, one.started_at)
            for one, _ in records(self._ground.store.presence)
            if one.pid in pids
        ]

    def starting(self) -> list[Alive]:
        at_work = {one.pid for one in self.alive()}
        return [
            Alive(pid, worker)
            for pid, worker in self.processes().items()
            if pid not in at_work and not self._is_killed(pid)
        ]

    def _is_killed(self, pid: int) -> bool:
        """Also one that is gone."""
        born = born_as(pid)
        return born is None or born in self._killed

    def await_alive(self, count: int = WORKERS) -> None:
        wait_until(lambda: len(self.alive()) >= count, f"{count} workers to run", every_s=0.05)

    def kill(self, one: Alive) -> Kill:
        born = born_as(one.pid)
        at, wall = time.monotonic(), round(time.time() * 1_000_000)
        os.kill(one.pid, signal.SIGKILL)
        if born is not None:
            self._killed.add(born)
        return Kill(one.worker, one.pid, at, wall, one.instance)

    def _next_name(self) -> str:
        self._number += 1
        return f"worker-{self._number:04}"


class BareFleet(Fleet):
    """`leasemill worker`, four times. Their parent, the lab, takes its time to wait for those that died."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._workers: list[WorkerProcess] = []
        self._dead: list[WorkerProcess] = []

    def start(self) -> None:
        self._workers = [self._ground.start(self._next_name(), ()) for _ in range(WORKERS)]

    def processes(self) -> dict[int, str]:
        return {worker.pid: worker.id for worker in self._workers}

    def kill(self, one: Alive) -> Kill:
        (victim,) = (worker for worker in self._workers if worker.pid == one.pid)
        victim.check_running()
        self._workers.remove(victim)
        self._dead.append(victim)
        return super().kill(one)

    def sessions_of(self, one: Alive) -> str:
        return one.worker

    def replace(self) -> None:
        while len(self._workers) < WORKERS:
            self._workers.append(self._ground.start(self._next_name(), ()))
        while len(self._dead) > WORKERS:
            self._dead.pop(0).wait()

    def kill_all(self) -> list[Kill]:
        return [self.kill(one)._replace(is_alone=False) for one in self.alive() + self.starting()]

    def end(self) -> list[str]:
        self.await_alive(len(self._workers))  # before that a SIGTERM ends an interpreter that knows no signal yet
        codes = {worker.id: worker.end() for worker in self._workers}
        return [f"{name} ended with {code}" for name, code in codes.items() if code]


class SupervisedFleet(Fleet):
    """`leasemill worker --processes 4`."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._supervisor: WorkerProcess | None = None

    @property
    def supervisor(self) -> WorkerProcess:
        assert self._supervisor is not None
        return self._supervisor

    def start(self) -> None:
        self._supervisor = self._ground.start(self._next_name(), ["--processes", str(WORKERS)])

    def processes(self) -> dict[int, str]:
        self.supervisor.check_running()
        found: dict[int, str] = {}
        for child in psutil.Process(self.supervisor.pid).children():
            with suppress(psutil.NoSuchProcess):
                for part in child.cmdline():  # one that has just been forked has still that of its parent
                    if part.startswith(ID):
                        found[child.pid] = part.removeprefix(ID)
        return found

    def sessions_of(self, one: Alive) -> str:
        return self.supervisor.id

    def replace(self) -> None:
        """The supervisor does."""
        self.supervisor.check_running()

    def kill_all(self) -> list[Kill]:
        """The supervisor first: it would start others."""
        alive = self.alive() + self.starting()
        self.supervisor.kill()
        return [self.kill(one)._replace(is_alone=False) for one in alive]

    def kill_supervisor(self) -> list[int]:
        """Only it; the process ids of its children."""
        pids = sorted(self.processes())
        self.supervisor.kill()
        return pids

    def end(self) -> list[str]:
        code = self.supervisor.end()
        return [f"the supervisor ended with {code}"] if code else []


# Standing still -------------------------------------------------------------------------------------------------


def stop_safely(pid: int, holds_no_lock: Callable[[], bool], limit_s: float = 20.0) -> bool:
    """SIGSTOP it at a moment when it holds no lock that others wait for; False: it has gone, or there was no moment."""
    deadline = time.monotonic() + limit_s
    with suppress(ProcessLookupError, FileNotFoundError):
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            while not _stands_still(pid):
                time.sleep(0.001)
            if holds_no_lock():
                return True
            os.kill(pid, signal.SIGCONT)
            time.sleep(RETRY_S)
    return False


def _stands_still(pid: int) -> bool:
    """Every thread of it. Raises FileNotFoundError when it has gone."""
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(state in "TtZX" for state in states)
