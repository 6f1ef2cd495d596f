"""One place for a handler's process: starts it, gives it a job at a time, serves what it asks for, and replaces it.

A thread for each: what one handler asks of the store, or logs, does not hold up another, and none of it waits for the
event loop. The process ends with the thread that started it (PR_SET_PDEATHSIG), so the thread waits for its end.
What must never happen: a run that is reported while its process is alive, unless the process reported its end itself.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import MsgspecError

from leasemill.api.context import Progress
from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.store.base import Store
from leasemill.worker.handler import Report
from leasemill.worker.processes import codec
from leasemill.worker.processes.launch import CUT_OFF, Spawned, cause_of, no_start
from leasemill.worker.processes.log_relay import RaisedInProcess, log_received
from leasemill.worker.processes.messages import (
    AnyToWorker,
    AskPresence,
    AskStore,
    BeginRun,
    CannotBegin,
    ChildReady,
    LeaseHeld,
    LogLine,
    ProgressMade,
    RunEnded,
    StopRun,
    WorkerStops,
    to_worker,
)
from leasemill.worker.processes.store_relay import answered
from leasemill.worker.run import Run

START_LIMIT_S: Final = 60.0
"""How long a new process may take to import the app."""
CLOSE_S: Final = 1.0
"""How long a process without a job may take to end when the worker does."""
CUT_OFF_S: Final = 0.5
"""How long a process may live on without its connection to the worker."""
LOOK_S: Final = 0.05
"""How often to look whether a process has ended, where the system does not report it."""


class ProcessSlot:
    """Runs one job at a time in a process of its own. `begin` and `close` on the event loop, the rest in any thread."""

    def __init__(
        self,
        name: str,
        launch: Callable[[], Spawned],
        store: Store,
        stopping: threading.Event,
        *,
        on_ready: Callable[[list[str]], None],
        on_begun: Callable[[Run], None],
        on_ended: Callable[[Run, Report | None], None],
        on_failed: Callable[[Run | None, Refused], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._launch = launch
        self._store = store
        self._stopping = stopping
        self._on_ready = on_ready
        self._on_begun = on_begun
        self._on_ended = on_ended
        self._on_failed = on_failed
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._jitter = 0.0
        self._is_sent = False
        self._is_stopping = False
        self._is_closing = False
        self._is_announced = False
        """Its process knows that the worker has begun to stop."""
        self._spawned: Spawned | None = None
        self._is_ready = False
        self._give_up_at: float | None = None
        """When a process that starts, or is to end, is killed."""
        self._refusal: CannotBegin | None = None
        self._report: Report | None = None
        """How a handler that was stopped ended: sent when its process is gone."""
        self._is_cut_off = False
        """Nothing more will come from the process."""
        self._cut_off_cause: str | None = None
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    # Called by the worker ------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """It has a process that waits for a job."""
        return self._is_ready

    @property
    def pid(self) -> int | None:
        spawned = self._spawned
        return None if spawned is None else spawned.pid

    def begin(self, run: Run, jitter: float) -> None:
        """Run this next; the slot has no other."""
        with self._lock:
            self._run, self._jitter, self._is_sent, self._is_stopping = run, jitter, False, False
        self._wake_up()

    def extended(self, run: Run) -> None:
        """Its lease was extended."""
        spawned = self._of(run)
        if spawned is not None:
            spawned.channel.offer(LeaseHeld(run.loss.held_until, run.ends_at))

    def announce_stop(self) -> None:
        """The worker has begun to stop: its process is notified as soon as it is ready."""
        self._wake_up()

    def stop(self, run: Run, reason: str) -> None:
        """Ask the handler to end; its process ends with it."""
        spawned = self._of(run, is_stopping=True)
        if spawned is not None:
            spawned.channel.offer(StopRun(reason))
        self._wake_up()

    def kill(self, run: Run) -> None:
        spawned = self._of(run, is_stopping=True)
        if spawned is not None:
            spawned.kill()
        self._wake_up()

    def close(self) -> None:
        """End the process when it has no job (any more)."""
        self._is_closing = True
        self._wake_up()

    def _of(self, run: Run, *, is_stopping: bool = False) -> Spawned | None:
        """The process in which this run is; None: it has ended, or has not begun."""
        with self._lock:
            if self._run is not run:
                return None
            self._is_stopping |= is_stopping
            return self._spawned if self._is_sent else None

    def _wake_up(self) -> None:
        with suppress(OSError):  # it is awake already, or gone
            self._wake.send(b"\0")

    # In its thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._start()
        while True:
            run = self._run
            if run is not None and not self._is_sent:
                self._advance(run)
            elif run is None and self._is_closing:
                if self._spawned is None:
                    break
                self._ask_to_end(self._spawned)
            if self._stopping.is_set() and self._is_ready and not self._is_announced:
                self._send_stop()
            self._wait()
        self._woken.close()
        self._wake.close()
        self._on_closed()

    def _advance(self, run: Run) -> None:
        """A run that its process does not have yet."""
        if self._is_stopping:
            self._end(run, None)
        elif self._is_ready:
            self._send(run)
        elif self._spawned is None:
            self._start()

    def _start(self) -> None:
        self._is_cut_off, self._cut_off_cause, self._refusal, self._report = False, None, None, None
        self._is_announced = False
        try:
            self._spawned = self._launch()
        except OSError as error:
            self._fail(f"a process for handlers cannot be started: {error}")
        else:
            self._give_up_at = time.monotonic() + START_LIMIT_S

    def _send(self, run: Run) -> None:
        assert self._spawned is not None
        has_waited = not run.started_at
        run.begin_in_process()
        with self._lock:
            self._is_sent = True
        if has_waited:
            self._on_begun(run)
        with suppress(OSError):  # it has ended, which is noticed at once
            self._spawned.channel.send(BeginRun(run.lease, self._jitter, run.loss.held_until, run.ends_at))

    def _send_stop(self) -> None:
        assert self._spawned is not None
        self._is_announced = True
        with suppress(OSError):  # it has ended, which is noticed at once
            self._spawned.channel.send(WorkerStops())

    def _ask_to_end(self, spawned: Spawned) -> None:
        if self._give_up_at is None:
            spawned.channel.end()
            self._give_up_at = time.monotonic() + CLOSE_S

    def _wait(self) -> None:
        """Wait for the worker or the process, and handle what they send."""
        spawned = self._spawned
        ready = select.poll()
        ready.register(self._woken, select.POLLIN)
        if spawned is not None:
            if not self._is_cut_off:
                ready.register(spawned.channel, select.POLLIN)
            if spawned.pidfd is not None:
                ready.register(spawned.pidfd, select.POLLIN)
        found = {descriptor for descriptor, _ in ready.poll(self._patience_ms())}
        if self._woken.fileno() in found:
            self._woken.recv(4096)
        if spawned is None:
            return
        if spawned.channel.fileno() in found:
            self._receive(spawned)
        if spawned.pidfd in found or (spawned.pidfd is None and not spawned.is_running()):
            self._process_ended(spawned)
        elif self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._give_up(spawned)

    def _patience_ms(self) -> float | None:
        if self._spawned is None:
            return None
        waits = [] if self._spawned.pidfd is not None else [LOOK_S]
        if self._give_up_at is not None:
            waits.append(max(0.0, self._give_up_at - time.monotonic()))
        return min(waits) * 1_000 + 1 if waits else None

    # What the process sends ----------------------------------------------------------------------------------------

    def _receive(self, spawned: Spawned, flags: int = 0) -> bool:
        """Handle what has come; False: nothing more will."""
        try:
            received = spawned.channel.receive(flags)
        except BlockingIOError:
            return False
        if received is None:
            self._is_cut_off = True
            if not self._is_closing:  # it is ending, in which case it is over soon, or it closed the descriptor
                self._give_up_at = time.monotonic() + CUT_OFF_S
            return False
        try:
            for content in received:
                self._handle(spawned, to_worker(content))
        except MsgspecError:
            self._is_cut_off = True
            self._give_up(spawned)
            return False
        return True

    def _give_up(self, spawned: Spawned) -> None:
        """It does not start, does not end, or can no longer be reached."""
        self._give_up_at = None
        if self._is_cut_off:
            self._cut_off_cause = CUT_OFF
        elif not self._is_ready:
            self._cut_off_cause = f"its process was killed after {START_LIMIT_S:g} s"
        spawned.kill()

    def _handle(self, spawned: Spawned, message: AnyToWorker) -> None:
        run = self._run
        match message:
            case RunEnded():
                self._run_ended(spawned, message)
            case AskStore() | AskPresence():
                self._answer(spawned, message)
            case LogLine():
                log_received(message, run)
            case ProgressMade(token, done, total, note):
                if run is not None and run.context is not None and run.lease.token == token:
                    run.context.latest_progress = Progress(done, total, note)
            case ChildReady(kinds):
                self._give_up_at = None
                self._is_ready = True
                self._on_ready(kinds)
            case CannotBegin():
                self._refusal = message

    def _answer(self, spawned: Spawned, question: AskStore | AskPresence) -> None:
        reply, answer = answered(self._store, question)
        run = self._run
        if isinstance(answer, c.Committed) and run is not None and answer.job_id == run.lease.job.id:
            run.note_commit()
        with suppress(OSError):  # it has ended meanwhile
            spawned.channel.send(reply)

    # Ends ----------------------------------------------------------------------------------------------------------

    def _run_ended(self, spawned: Spawned, message: RunEnded) -> None:
        run = self._run
        assert run is not None
        run.is_never_retried = message.is_never_retried
        run.has_ended_in_time = message.lost is None
        run.error = None if message.raised is None else RaisedInProcess(f"\n{message.raised}")
        if message.is_committed:
            run.note_commit()
        report: Report = codec.unpack(message.report)
        if message.has_raised:
            text = report.error if isinstance(report, c.NackReport | c.ReleaseReport) else None
            run.raised = run.error or RaisedInProcess(text or "")
        with self._lock:
            is_stopping = self._is_stopping
            if not is_stopping:
                self._run = None
        if not is_stopping and message.lost is not None:
            run.loss.set(message.lost)
        if is_stopping:
            self._report = report  # what a stopped handler left behind is not for the next job
            spawned.kill()
        else:
            self._on_ended(run, report)

    def _process_ended(self, spawned: Spawned) -> None:
        while not self._is_cut_off and self._receive(spawned, socket.MSG_DONTWAIT):
            pass  # what it wrote before it ended
        status = spawned.reap()
        cause = self._cut_off_cause or cause_of(status)
        was_ready, was_closing = self._is_ready, self._is_closing and self._run is None
        with self._lock:
            run, is_sent = self._run, self._is_sent
            self._is_ready, self._spawned, self._give_up_at = False, None, None
        if run is not None and is_sent:
            lease = run.lease
            report = self._report if self._is_stopping else c.DeathReport(lease.job.id, lease.token, cause)
            self._end(run, report)
        elif not was_ready and not was_closing:
            self._fail(no_start(self._refusal, cause))

    def _end(self, run: Run, report: Report | None) -> None:
        with self._lock:
            self._run = None
        self._on_ended(run, report)

    def _fail(self, why: str) -> None:
        """No process can be started; the run, if there is one, was not begun."""
        with self._lock:
            run, self._run = self._run, None
        self._on_failed(run, Refused(why))
