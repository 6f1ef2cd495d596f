"""The main of a handler's process: imports the app, then runs one job at a time until the worker closes the channel.

Handlers run in the main thread, sync ones outside of the event loop, async ones in it. A second thread reads what the
worker sends. What must never happen: a process that runs on when its worker is gone, or when its lease is over and the
worker did not end it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from importlib import import_module
from multiprocessing import spawn
from typing import Final

from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.store.base import Store
from leasemill.worker.processes import log_relay
from leasemill.worker.processes.handler_runner import HandlerRunner
from leasemill.worker.processes.interruption import HandlersChannel, Interruption
from leasemill.worker.processes.launch import Importing
from leasemill.worker.processes.messages import (
    EXIT_CUT_OFF,
    AnyToChild,
    AppTarget,
    Begin,
    BeginRun,
    CannotBegin,
    ChildReady,
    LeaseHeld,
    StopRun,
    StoreAnswered,
    StoreRaised,
    WorkerStops,
    to_child,
)
from leasemill.worker.processes.store_relay import ForwardingStore, OpenedAtUse, Requests
from leasemill.worker.run import Run

PR_SET_PDEATHSIG: Final = 1
EXIT_STOPPED: Final = 128 + signal.SIGTERM
LONGEST_POLL_S: Final = 1.0
"""How often to look, while a handler runs, whether the channel is still there."""
EXIT_S: Final = 5.0
"""How long threads that handlers left behind may keep a process that was asked to end."""


def main(descriptor: int) -> None:
    """What a new process runs; the descriptor is its end of the socket."""
    _end_with_worker()
    interruption = Interruption()
    interruption.install()
    channel = HandlersChannel(socket.socket(fileno=descriptor))
    channel.interruption = interruption
    inbox = Inbox(channel, interruption)
    begin = inbox.begin()
    if begin is None:
        return
    with ExitStack() as cleaning:
        try:
            runner = _begun(begin, channel, inbox, interruption, cleaning)
        except BaseException as error:  # noqa: BLE001  (the user's module: whatever it raises is shown)
            with suppress(OSError):  # the worker has ended meanwhile
                channel.send(CannotBegin(f"{type(error).__name__}: {error}", traceback.format_exc()))
            return
        interruption.install()  # the app's module may have taken the signals
        with suppress(OSError):  # the worker has ended meanwhile: there is no job to come
            channel.send(ChildReady(sorted(runner.app.handlers)))
        try:
            while (job := runner.next(inbox.jobs)) is not None:
                runner.run(job, inbox)
        except SystemExit:
            os._exit(EXIT_STOPPED)  # stopped where no handler was running: the worker waits for the end of the process
    threading.Thread(target=_exit_late, name="leasemill-exit", daemon=True).start()


def _begun(
    begin: Begin, channel: HandlersChannel, inbox: Inbox, interruption: Interruption, cleaning: ExitStack
) -> HandlerRunner:
    sys.path[:] = begin.sys_path
    sys.argv[:] = begin.argv
    os.chdir(begin.folder)
    sent = log_relay.LogSender(channel)
    log_relay.use_for_all(sent, begin.levels)
    Importing.is_under_way = True
    app = load(begin.app)
    app.handlers  # noqa: B018  (imports the modules of `include`)
    Importing.is_under_way = False
    log_relay.use_for_all(
        sent, begin.levels
    )  # the app's module may have added handlers that write to this process's output
    os.register_at_fork(after_in_child=lambda: _forked(channel))
    requests = Requests(channel)
    inbox.requests = requests
    store: Store
    if begin.url is None:
        store = ForwardingStore(requests, begin.store_name)
        cleaning.enter_context(app.bound_to(store))
    else:
        if app.url != begin.url:
            app.close()
            app.url = begin.url
        store = OpenedAtUse(lambda: app.store, begin.store_name)
        cleaning.callback(app.close)
    inbox.start()
    runner = HandlerRunner(app, store, channel, interruption, cleaning, inbox.stopping)
    runner.enter_lifespan()
    return runner


def load(target: AppTarget) -> App:
    """The app, imported as the worker has it."""
    if target.main is not None:
        spawn.prepare(target.main)
        module = sys.modules["__main__"]
    else:
        module = import_module(target.module)
    app = getattr(module, target.name, None)
    if not isinstance(app, App):
        raise Invalid(
            f"{target.module} has no app {target.name!r} when it is imported in a new process: make the app where the "
            'module is imported, not behind `if __name__ == "__main__":`'
        )
    return app


class Inbox:
    """Reads what the worker sends, in a thread of its own: jobs are queued, everything else is handled at once."""

    def __init__(self, channel: HandlersChannel, interruption: Interruption) -> None:
        self.jobs: queue.SimpleQueue[BeginRun | None] = queue.SimpleQueue()
        """None means that there are no more."""
        self.requests: Requests
        self.stopping = threading.Event()
        """`ctx.stopping`: the worker has begun to stop."""
        self._channel = channel
        self._interruption = interruption
        self._unread: list[AnyToChild] = []
        self._running: Run | None = None
        self._lock = threading.Lock()
        """Guards the times of the lease: one thread reads what comes, the other ends the run."""
        self._held_until = 0.0
        self._ends_at: float | None = None
        """When the lease of the job that was sent last is over; None: nothing runs."""

    def begin(self) -> Begin | None:
        """The first message; None: the worker has gone meanwhile."""
        while (received := self._channel.receive()) is not None:
            if received:
                first, *self._unread = map(to_child, received)
                assert isinstance(first, Begin)
                return first
        return None

    def start(self) -> None:
        threading.Thread(target=self._read, name="leasemill-inbox", daemon=True).start()

    def taken(self, run: Run) -> None:
        """This run is about to begin: what comes is about it."""
        self._running = run
        run.loss.held_until = self._held_until

    def ended(self) -> None:
        with self._lock:
            self._running = None
            self._ends_at = None

    def _read(self) -> None:
        ready = select.poll()
        ready.register(self._channel.fileno(), select.POLLIN)
        for message in self._unread:
            self._handle(message)
        while True:
            if not ready.poll(self._patience_ms()):
                continue
            try:
                received = self._channel.receive()
            except OSError:
                os._exit(EXIT_CUT_OFF)  # the handler has closed descriptors that are not its own
            if received is None:
                break
            for content in received:
                self._handle(to_child(content))
        if self._ends_at is not None:
            os.killpg(0, signal.SIGKILL)  # the worker is gone, or does not want this run any more
        self.jobs.put(None)

    def _patience_ms(self) -> float | None:
        """How long to wait for the worker. One that is stopped, or hangs, cannot end this process with its lease."""
        ends_at = self._ends_at
        if ends_at is None:
            return None
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            os.killpg(0, signal.SIGKILL)
        return min(left_s, LONGEST_POLL_S) * 1_000 + 1

    def _handle(self, message: AnyToChild) -> None:
        match message:
            case BeginRun(held_until=held_until, ends_at=ends_at):
                self._held_until, self._ends_at = held_until, ends_at
                self.jobs.put(message)
            case StoreAnswered() | StoreRaised():
                self.requests.answered(message)
            case LeaseHeld(held_until, ends_at):
                with self._lock:
                    if self._ends_at is not None:  # else the run is over, and this process may wait for the next
                        self._held_until, self._ends_at = held_until, ends_at
                    if self._running is not None:
                        self._running.loss.held_until = held_until
            case StopRun(reason):
                if self._running is not None:
                    self._running.loss.set(reason)
                self._interruption.stop(reason)
            case WorkerStops():
                self.stopping.set()
            case Begin():
                raise AssertionError("a process begins once")


def _end_with_worker() -> None:
    """The system kills this process when its worker's ends, even if a handler holds the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _forked(channel: HandlersChannel) -> None:
    """A process that a handler forked: the channel is not its own."""
    channel.close()
    logging.getLogger().handlers[:] = [logging.StreamHandler()]


def _exit_late() -> None:
    time.sleep(EXIT_S)
    os._exit(0)
