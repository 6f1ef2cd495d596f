"""Waking those who wait: NOTIFY when jobs come, never one for each, and a connection that LISTENs.

Soft: whoever misses it looks again within a second. Behind a pooler that has no LISTEN, looking is all there is.
"""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import psycopg
from psycopg import sql

from leasemill.errors import LeasemillError
from leasemill.kernel.model import SECOND
from leasemill.store.ends import Cancellations
from leasemill.store.postgres.database import RUN_CANCELLED
from leasemill.store.postgres.wire.connections import Connection
from leasemill.store.postgres.wire.waiters import Waiters
from leasemill.store.signal import Signal

LOGGER: Final = logging.getLogger("leasemill.postgres")
QUIET_S: Final = 0.02
BURST: Final = 5
LOOK_EVERY_S: Final = 1.0
LONGEST_PAUSE_S: Final = 5.0
QUEUES_KEPT: Final = 10_000


class Notifier:
    """Tells other processes that jobs came: with the statement that brings them, unless there were many of late. Then
    at most once in a while."""

    def __init__(self, channel: str, tell: Callable[[], None]) -> None:
        self._channel = channel
        self._tell = tell
        self._is_closed = False
        self._start_over()

    def _start_over(self) -> None:
        """Also in a forked child, where the parent's thread is not and its lock may be taken for ever."""
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._left = float(BURST)
        self._counted_at_s = time.monotonic()
        self._is_pending = False
        self._thread: threading.Thread | None = None

    def channel(self) -> str | None:
        """The channel for a statement to notify; None: it will be told shortly after, with what follows."""
        if os.getpid() != self._pid:
            self._start_over()
        with self._changed:
            now_s = time.monotonic()
            self._left = min(BURST, self._left + (now_s - self._counted_at_s) / QUIET_S)
            self._counted_at_s = now_s
            if self._left >= 1 and not self._is_pending:
                self._left -= 1
                return self._channel
            self._is_pending = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="leasemill notify", daemon=True)
                self._thread.start()
            self._changed.notify()
            return None

    def stop(self) -> None:
        if os.getpid() != self._pid:
            self._start_over()
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, until_s: float) -> None:
        """Wait for its thread, until then on the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_pending or self._is_closed)
                if self._is_closed:
                    return
                self._changed.wait_for(lambda: self._is_closed, QUIET_S)
                self._is_pending = False
                self._left = 0.0
                self._counted_at_s = time.monotonic()
            with suppress(LeasemillError):
                self._tell()


class News:
    """Which queues were told to have got jobs that are due: whoever waits for one of them need not ask."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[str, int] = {}

    def add(self, queue: str) -> None:
        """Called by the listener alone."""
        if len(self._counts) >= QUEUES_KEPT:
            self._counts = {}
        self._counts[queue] = self.count + 1
        self.count += 1

    def has_any(self, queues: Iterable[str], since: int) -> bool:
        counts = self._counts
        return any(counts.get(queue, 0) > since for queue in queues)


class Listener:
    """A thread with a connection of its own; every notification of new jobs moves the signal."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        signal: Signal,
        news: News,
        waiters: Waiters,
        cancellations: Cancellations,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._signal = signal
        self._news = news
        self._waiters = waiters
        self._cancellations = cancellations
        self._has_news = False
        self._pid = os.getpid()
        self._stop_reading, self._stop_writing = socket.socketpair()
        self._nudges_reading, self._nudges_writing = socket.socketpair()
        self._nudges_reading.setblocking(False)
        self._nudges_writing.setblocking(False)
        self._is_closed = False
        self.is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leasemill listen", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether its thread is of this process, not of one that forked it."""
        return os.getpid() == self._pid

    def nudge(self) -> None:
        """Somebody waits for a job's end, or does not any more."""
        with suppress(OSError):  # then it has been nudged often enough, or is closed
            self._nudges_writing.send(b"!")

    def stop(self) -> None:
        self._is_closed = True
        if self.is_here:
            self._stop_writing.send(b".")

    def join(self, until_s: float) -> None:
        """Wait for its thread, until then on the monotonic clock."""
        if self.is_here:
            self._thread.join(max(0.0, until_s - time.monotonic()))
        if not self.is_here or not self._thread.is_alive():
            for one in (self._stop_reading, self._stop_writing, self._nudges_reading, self._nudges_writing):
                one.close()

    def _run(self) -> None:
        pause_s = 0.1
        while not self._is_closed:
            try:
                with self._connect() as connection:
                    self._listen(connection)
                pause_s = 0.1
            except psycopg.Error as error:
                LOGGER.info("not listening for new jobs, only looking: %s", str(error).strip())
            self.is_listening.clear()
            self._wake_all()
            self._pause(random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _listen(self, connection: Connection) -> None:
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        connection.add_notify_handler(lambda it: self._heard(it.channel, it.payload))  # while a statement runs
        self._waiters.listen(connection)
        self.is_listening.set()
        self._wake_all()
        poll = select.poll()
        for readable in (connection.fileno(), self._stop_reading, self._nudges_reading):
            poll.register(readable, select.POLLIN)
        while not self._is_closed:
            self._waiters.tend(connection)
            poll.poll(0 if self._has_news else self._waiters.pause_ms())
            with suppress(BlockingIOError):
                self._nudges_reading.recv(4096)
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                self._heard(notification.relname.decode(), notification.extra.decode())
            if self._has_news:
                self._has_news = False
                self._signal.notify()

    def _heard(self, channel: str, payload: str) -> None:
        if channel == self._waiters.channel:
            self._waiters.heard(payload)
        elif payload == RUN_CANCELLED:
            self._cancellations.notify()
        else:
            if payload:
                self._news.add(payload)
            self._has_news = True

    def _wake_all(self) -> None:
        """Anything may have happened while nobody listened."""
        self._signal.notify()
        self._waiters.ends.notify_all()
        self._cancellations.notify()

    def _pause(self, pause_s: float) -> None:
        poll = select.poll()
        poll.register(self._stop_reading, select.POLLIN)
        poll.poll(pause_s * 1_000)


class Asked(Protocol):
    """The question a watch asks: in how many microseconds the next job is due."""

    def due_in(self, queues: Sequence[str]) -> int | None: ...

    async def adue_in(self, queues: Sequence[str]) -> int | None: ...


class PostgresWatch:
    """Wakes when, after a change of anybody's or when its time has come, a job is due."""

    def __init__(self, store: Asked, signal: Signal, news: News, queues: Sequence[str]) -> None:
        self._store = store
        self._queues = tuple(queues)
        self._watch = signal.watch()
        self._news = news
        self._seen = news.count

    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            self._watch.wait(0)
            if self._is_told():
                return True
            due_s = self._due_s(self._ask())
            left_s = until_s - time.monotonic()
            if due_s <= 0 or left_s <= 0:
                return due_s <= 0
            self._watch.wait(min(left_s, due_s, LOOK_EVERY_S))

    async def wait_async(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            self._watch.wait(0)
            if self._is_told():
                return True
            due_s = self._due_s(await self._aask())
            left_s = until_s - time.monotonic()
            if due_s <= 0 or left_s <= 0:
                return due_s <= 0
            await self._watch.wait_async(min(left_s, due_s, LOOK_EVERY_S))

    def close(self) -> None:
        self._watch.close()

    def _is_told(self) -> bool:
        """A round trip less between a job and the claim that gets it."""
        since, self._seen = self._seen, self._news.count
        return self._news.has_any(self._queues, since)

    def _ask(self) -> int | None:
        try:
            return self._store.due_in(self._queues)
        except LeasemillError:
            return 0  # whoever waits will learn why from the verbs

    async def _aask(self) -> int | None:
        try:
            return await self._store.adue_in(self._queues)
        except LeasemillError:
            return 0

    def _due_s(self, due_us: int | None) -> float:
        return LOOK_EVERY_S if due_us is None else due_us / SECOND
