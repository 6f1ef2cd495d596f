"""Watches for writes to the folder: by inotify; where there is none, by looking every 10 ms."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasemill.errors import Unavailable
from leasemill.kernel.commands import DueIn
from leasemill.kernel.model import SECOND
from leasemill.store.file.tickets import LogTicket
from leasemill.store.pipeline import Pipeline

IN_MODIFY: Final = 0x2
IN_ATTRIB: Final = 0x4
IN_MOVED_TO: Final = 0x80
IN_EXCL_UNLINK: Final = 0x04000000
"""Leaves out files without a name: what a process spills is not news."""
EVENTS_BYTES: Final = 64 * 1024
LOOK_EVERY_S: Final = 0.01
LONGEST_POLL_MS: Final = 24 * 3_600 * 1_000


class Inotify:
    """Reports writes to a folder's files, or to one file, from the moment it is made."""

    def __init__(self, path: Path, events: int = IN_MODIFY | IN_MOVED_TO | IN_EXCL_UNLINK) -> None:
        self._fd = _inotify(path, events)

    @property
    def fd(self) -> int | None:
        """A descriptor that is readable when something was written; None where the system does not report it."""
        return self._fd

    def drain(self) -> None:
        """Drop what was reported so far."""
        if self._fd is None:
            return
        try:
            while os.read(self._fd, EVENTS_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _inotify(path: Path, events: int) -> int | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None  # the system's limit of watches is reached: look now and then
    if libc.inotify_add_watch(fd, os.fsencode(path), events) < 0:
        os.close(fd)
        return None
    return fd


class FolderWatch:
    """A store's Watch: it wakes when a job is due, after a write of any process or when the job's time has come."""

    def __init__(self, path: Path, pipeline: Pipeline[LogTicket], question: DueIn) -> None:
        self._writes = Inotify(path)
        self._pipeline = pipeline
        self._question = question

    def wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while True:
            self._writes.drain()
            ticket = LogTicket(self._question, is_durable=False)
            with suppress(Unavailable):
                self._pipeline.run(ticket)
            due_in_s, left_s = _due_in_s(ticket), until - time.monotonic()
            if due_in_s <= 0 or left_s <= 0:
                return due_in_s <= 0
            self._pause(min(left_s, due_in_s))

    async def wait_async(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while True:
            self._writes.drain()
            ticket = LogTicket(self._question, is_durable=False)
            with suppress(Unavailable):
                await self._pipeline.arun(ticket)
            due_in_s, left_s = _due_in_s(ticket), until - time.monotonic()
            if due_in_s <= 0 or left_s <= 0:
                return due_in_s <= 0
            await self._pause_async(min(left_s, due_in_s))

    def _pause(self, pause_s: float) -> None:
        if self._writes.fd is None:
            time.sleep(min(pause_s, LOOK_EVERY_S))
        else:
            poll = select.poll()  # select() takes no descriptor above 1,023
            poll.register(self._writes.fd, select.POLLIN)
            poll.poll(min(math.ceil(pause_s * 1_000), LONGEST_POLL_MS))

    async def _pause_async(self, pause_s: float) -> None:
        if self._writes.fd is None:
            await asyncio.sleep(min(pause_s, LOOK_EVERY_S))
            return
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        loop.add_reader(self._writes.fd, _resolve, written)
        try:
            await asyncio.wait((written,), timeout=pause_s)
        finally:
            loop.remove_reader(self._writes.fd)

    def close(self) -> None:
        self._writes.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _due_in_s(ticket: LogTicket) -> float:
    """Return when the next job is due. It is now if the store could not answer: the next call then raises why."""
    if ticket.error is not None:
        return 0.0
    return math.inf if ticket.answer is None else ticket.answer / SECOND
