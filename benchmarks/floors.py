"""The least that a durable enqueue of many callers must do, in plain Python: what any log could reach here.

Nothing is encoded, checked or decided. Threads share a write and a sync: whoever comes first does it
for all that wait. Processes append to one file under a lock, and sync it outside the lock.
"""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct

from benchmarks.disk import folder

FILE_BYTES = 32 * 1024 * 1024
TAIL = Struct("<q")
SPAWN = multiprocessing.get_context("spawn")


class GroupCommit:
    """Of threads: one lock, one list, and a lock for each call that waits."""

    def __init__(self, descriptor: int, frame: bytes) -> None:
        self._descriptor = descriptor
        self._frame = frame
        self._tail = 0
        self._guard = threading.Lock()
        self._waiting: list[threading.Lock] = []
        self._is_led = False

    def append(self) -> None:
        woken = threading.Lock()
        woken.acquire()
        with self._guard:
            leads = not self._is_led
            self._is_led = True
            self._waiting.append(woken)
        if leads:
            self._lead()
        woken.acquire()

    def _lead(self) -> None:
        while True:
            with self._guard:
                batch, self._waiting = self._waiting, []
                self._is_led = bool(batch)
            if not batch:
                return
            content = self._frame * len(batch)
            os.pwrite(self._descriptor, content, self._tail)
            self._tail += len(content)
            os.fdatasync(self._descriptor)
            for one in batch:
                one.release()


def zeroed(path: Path) -> int:
    with path.open("wb") as file:
        file.write(bytes(FILE_BYTES))
        os.fsync(file.fileno())
    return os.open(path, os.O_RDWR)


def by_threads(frame: bytes, count: int = 32_000, threads: int = 32) -> float:
    """Calls per second."""
    with folder() as path:
        commit = GroupCommit(zeroed(path / "log"), frame)

        def some() -> None:
            for _ in range(count // threads):
                commit.append()

        started = [threading.Thread(target=some) for _ in range(threads)]
        began = time.perf_counter()
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return count / (time.perf_counter() - began)


def by_processes(frame: bytes, count: int = 6_000, processes: int = 4) -> float:
    """Calls per second of all of them together."""
    with folder() as path:
        os.close(zeroed(path / "log"))
        (path / "control").write_bytes(bytes(mmap.PAGESIZE))
        pipes = [SPAWN.Pipe() for _ in range(processes)]
        started = [
            SPAWN.Process(target=_append, args=(str(path), frame, count // processes, theirs)) for _, theirs in pipes
        ]
        for process in started:
            process.start()
        for ours, _ in pipes:
            ours.recv()
        began = time.perf_counter()
        for ours, _ in pipes:
            ours.send("go")
        for ours, _ in pipes:
            ours.recv()
        took = time.perf_counter() - began
        for process in started:
            process.join()
        return count / took


def _append(path: str, frame: bytes, count: int, pipe: Connection) -> None:
    log, control = os.open(f"{path}/log", os.O_RDWR), os.open(f"{path}/control", os.O_RDWR)
    with mmap.mmap(control, mmap.PAGESIZE) as page:
        pipe.send("ready")
        pipe.recv()
        for _ in range(count):
            fcntl.flock(control, fcntl.LOCK_EX)
            (tail,) = TAIL.unpack_from(page)
            os.pwrite(log, frame, tail)
            TAIL.pack_into(page, 0, tail + len(frame))
            fcntl.flock(control, fcntl.LOCK_UN)
            os.fdatasync(log)
        pipe.send("done")
