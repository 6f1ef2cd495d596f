"""A connection that LISTENs, in a thread of its own: for new jobs, ends of jobs and cancellations.

Soft: whoever misses a notification looks again within a second. Behind a pooler that has no LISTEN, looking is all
there is.
"""

from __future__ import annotations

import logging
import random
import select
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psycopg

from leasemill.store.notifications import Cancellations, Ends, Signal
from leasemill.store.postgres.driver.exchange import StoreConnection
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.known import RUN_CANCELLED
from leasemill.store.postgres.waking.waiters import Waiters

LOGGER: Final = logging.getLogger("leasemill.postgres")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
MOST_QUEUES: Final = 10_000


class Arrivals:
    """Which queues got jobs that are due, as notified: whoever waits for one of them need not ask."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[str, int] = {}

    def add(self, queue: str) -> None:
        """Called by the listener alone."""
        if len(self._counts) >= MOST_QUEUES:
            self._counts = {}
        self._counts[queue] = self.count + 1
        self.count += 1

    def has_any(self, queues: Iterable[str], since: int) -> bool:
        counts = self._counts
        return any(counts.get(queue, 0) > since for queue in queues)


class Listener:
    """Its thread begins when somebody first waits, and again in a forked child. New jobs move the signal."""

    def __init__(self, threads: ThreadDriver, channel: str, signal: Signal, *, is_enabled: bool) -> None:
        self._threads = threads
        self._channel = channel
        self._signal = signal
        self._is_enabled = is_enabled
        self._is_closed = False
        self.arrivals = Arrivals()
        self.ends = Ends(self._wake)
        self.cancellations = Cancellations()
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._waiters = Waiters(self._threads, self.ends)
        self._has_arrivals = False
        self.is_listening = threading.Event()

    def after_fork(self) -> None:
        """The parent's thread is not here, nor is whoever waits there."""
        self._close_sockets()
        self.ends.reset()
        self.cancellations.reset()
        self._start_over()

    def start(self) -> None:
        with self._lock:
            if self._thread is None and self._is_enabled and not self._is_closed:
                self._sockets = socket.socketpair()
                for one in self._sockets:
                    one.setblocking(False)
                thread = threading.Thread(
                    target=self._run, args=(self._sockets[0],), name="leasemill listen", daemon=True
                )
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        with self._lock:  # a thread that is being started has been started after this, and none starts any more
            self._is_closed = True
        self._wake()

    def join(self, until_s: float) -> None:
        """Wait for its thread, until then on the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, until_s - time.monotonic()))
            if self._thread.is_alive():
                return
        self._close_sockets()

    def _wake(self) -> None:
        """Somebody waits for a job's end, or does not any more; or the store was closed."""
        if self._sockets is not None:
            with suppress(OSError):  # then it has been woken often enough, or has ended
                self._sockets[1].send(b"!")

    def _close_sockets(self) -> None:
        for one in self._sockets or ():
            one.close()

    # In its thread

    def _run(self, woken: socket.socket) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_closed:
            began_s = time.monotonic()
            try:
                with self._threads.connections.connect() as connection:
                    self._listen(connection, woken)
            except psycopg.Error as error:
                LOGGER.info("not listening for new jobs, polling instead: %s", str(error).strip())
            if self.is_listening.is_set() and time.monotonic() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S  # it worked for a while: what ended it is new
            self.is_listening.clear()
            self._wake_all()
            self._pause(woken, until_s=time.monotonic() + random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _pause(self, woken: socket.socket, until_s: float) -> None:
        while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
            _wait(woken, None, left_s)

    def _listen(self, connection: StoreConnection, woken: socket.socket) -> None:
        self._threads.listen(connection, self._channel)
        self._waiters.listen(connection)
        self.is_listening.set()
        self._wake_all()
        while not self._is_closed:
            self._waiters.update(connection)
            if not self._take_notifications(connection):  # some may have arrived with the answers to those statements
                _wait(woken, connection, self._waiters.pause_s())
                connection.pgconn.consume_input()
                self._take_notifications(connection)
            if self._has_arrivals:
                self._has_arrivals = False
                self._signal.notify()

    def _take_notifications(self, connection: StoreConnection) -> bool:
        """Return True if there were any."""
        has_any = False
        while (notification := connection.pgconn.notifies()) is not None:
            self._receive(notification.relname.decode(), notification.extra.decode())
            has_any = True
        return has_any

    def _receive(self, channel: str, payload: str) -> None:
        if channel == self._waiters.channel:
            self._waiters.receive(payload)
        elif payload == RUN_CANCELLED:
            self.cancellations.notify()
        else:
            if payload:
                self.arrivals.add(payload)
            self._has_arrivals = True

    def _wake_all(self) -> None:
        """Anything may have happened while nobody listened."""
        self._signal.notify()
        self.ends.notify_all()
        self.cancellations.notify()


def _wait(woken: socket.socket, connection: StoreConnection | None, seconds: float | None) -> None:
    """Until there is something to read, or the time is over."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    if connection is not None:
        poll.register(connection.fileno(), select.POLLIN)
    poll.poll(None if seconds is None else seconds * 1_000)
    with suppress(BlockingIOError):
        woken.recv(4096)
