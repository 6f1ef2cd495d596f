"""Starts the processes of a worker, notices their ends, and passes signals on.

One thread, one loop. It opens no store, imports no app and runs no handler. What must never happen: a process that is
left behind, one that is stopped twice for one signal, or a slot among the processes that stays empty unnoticed.
"""

from __future__ import annotations

import logging
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from leasemill.worker.process_ends import (
    EXIT_CRASH_LOOP,
    EXIT_OVERRUN,
    EXIT_REPLACE,
    ChildDeath,
    PendingDeaths,
    RestartPace,
    Restarts,
    described,
    exit_status,
)
from leasemill.worker.signals import SignalSocket
from leasemill.worker.start_log import StartFacts, log_started
from leasemill.worker.supervisor.channel import Message
from leasemill.worker.supervisor.child import Child
from leasemill.worker.supervisor.metrics_aggregator import MetricsAggregator

log = logging.getLogger("leasemill.supervisor")

FATAL: Final = frozenset({2, 4})
"""A wrong setting, a damaged store: starting again does not help."""
KILL_AFTER_S: Final = 2.0
"""How long after its shutdown timeout a process is killed: by then it should have ended itself."""
LOOK_S: Final = 1.0
"""The longest time between two looks at everything, should a notification be missed."""


@dataclass(frozen=True, slots=True)
class Processes:
    """What to run."""

    name: str
    """The worker's name; its processes are NAME.1, NAME.2 and so on."""
    count: int
    command: Sequence[str]
    environment: Mapping[str, str]
    shutdown_s: float
    drains: bool = False
    pace: RestartPace = field(default_factory=RestartPace)


@dataclass(slots=True)
class WorkerSlot:
    """One of NAME.1 to NAME.N, and the process that has it."""

    worker_id: str
    restarts: Restarts
    current: Child | None = None
    standby: Child | None = None
    """Its successor: imports the app while the current one still works, and runs when that has ended."""
    start_at: float | None = None
    has_been_up: bool = False
    is_closed: bool = False
    """No process is started for it again: nothing was left to do, or an operator stopped it."""

    @property
    def children(self) -> list[Child]:
        return [child for child in (self.current, self.standby) if child is not None]


class Supervisor:
    def __init__(self, processes: Processes, aggregator: MetricsAggregator | None = None) -> None:
        self._processes = processes
        names = [f"{processes.name}.{number}" for number in range(1, processes.count + 1)]
        self.slots = [WorkerSlot(name, Restarts(processes.pace)) for name in names]
        self.on: dict[str, Callable[[Child, Message], None]] = {
            "hello": self._hello,
            "up": self._up,
            "retiring": self._retiring,
            "dismissed": self._dismissed,
            "recorded": self._recorded,
            "samples": self._add_samples,
        }
        """What to do when a process reports something, by the message's `is`."""
        self._metrics = aggregator
        """Where the metrics of its processes are added up; None: nobody asked for them."""
        self._pending_deaths = PendingDeaths()
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callable[[], None]] = deque()
        self._generation = 0
        self._is_rolling = False
        self._has_been_ready = False
        self._has_been_up = False
        self._stops = 0
        self._exit_code = 0

    # The loop ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until every process has ended and none is to be started; returns the exit code."""
        with SignalSocket() as self._signals:
            self._selector.register(self._signals, selectors.EVENT_READ)
            self._begin()
            self._look()
            while not self._is_over:
                for key, _ in self._selector.select(self._wait_s()):
                    if isinstance(key.fileobj, Child):
                        self._read(key.fileobj)
                for number in self._signals.signals():
                    self._signalled(number)
                self._look()
        self._selector.close()
        return self._exit_code

    def call(self, function: Callable[[], None]) -> None:
        """Call it in the supervisor's loop. From any thread."""
        self._calls.append(function)
        self._signals.wake()

    def _begin(self) -> None:
        """One process first: what is wrong with the app or its settings is then reported once."""
        self.slots[0].start_at = time.monotonic()

    def _look(self) -> None:
        """Do what is due, for every slot, whatever has woken the supervisor.

        Signals may be merged by the system (two children that die together send one SIGCHLD), so no signal is believed
        to be about one process: each is asked whether it has ended. What a process sent before its end is read first,
        because it may have confirmed a death, or reported that it was up. One thread does all of it, so no slot changes
        meanwhile.
        """
        while self._calls:
            self._calls.popleft()()
        for slot in self.slots:
            for child in slot.children:
                child.channel.flush()
                if child.return_code is not None:
                    self._read(child)
                    self._forget(child)
                    self._ended(slot, child, child.return_code)
                elif child.kill_at is not None and time.monotonic() >= child.kill_at:
                    log.error("worker %s (pid %d) has not stopped in time: killed", child.worker_id, child.pid)
                    if self._stops:
                        self._exit_code = self._exit_code or EXIT_OVERRUN
                    child.kill()
            if slot.start_at is not None and time.monotonic() >= slot.start_at and not self._stops:
                slot.start_at = None
                slot.current = self._started(slot)
                if slot.current is None:
                    slot.start_at = time.monotonic() + slot.restarts.delay_s(None)
        self._roll()
        self._pass_deaths()
        self._ask_for_samples()

    @property
    def _is_over(self) -> bool:
        if any(slot.children for slot in self.slots):
            return False
        return bool(self._stops) or all(slot.is_closed for slot in self.slots)

    def _wait_s(self) -> float:
        due = [time.monotonic() + LOOK_S, self._pending_deaths.due_at() if self._at_work() else None]
        for slot in self.slots:
            due += [slot.start_at, *(child.kill_at for child in slot.children)]
        return max(0.0, min(at for at in due if at is not None) - time.monotonic())

    # Starting ----------------------------------------------------------------------------------------------------

    def _started(self, slot: WorkerSlot) -> Child | None:
        """Start a process for the slot; returns None if the system does not allow one now."""
        what = self._processes
        try:
            child = Child(
                slot.worker_id, what.command, what.environment, generation=self._generation, now=time.monotonic()
            )
        except OSError as error:
            log.error("a process of worker %s could not be started: %s", slot.worker_id, error)
            return None
        self._selector.register(child, selectors.EVENT_READ)
        return child

    def _let_run(self, child: Child) -> None:
        """What it must know of others that died comes before its first claim."""
        for death in self._pending_deaths.all_of(time.monotonic()):
            self._pass_death(death, child)
        child.run()

    def _read(self, child: Child) -> None:
        while messages := child.channel.receive(waits=False):
            for message in messages:
                self._received(child, message)
        if messages is None:
            self._forget(child)

    def _forget(self, child: Child) -> None:
        if child.fileno() in self._selector.get_map():
            self._selector.unregister(child)

    def _received(self, child: Child, message: Message) -> None:
        """Handle a report. From a process that has ended, only these count: it was up, it recorded, it counted."""
        what = message["is"]
        if what not in self.on:  # a process that was restarted may be of a later version than its supervisor
            log.error("unknown report of worker %s: %r", child.worker_id, what)
        elif child.return_code is None or what in ("up", "recorded", "samples"):
            self.on[what](child, message)

    def _hello(self, child: Child, message: Message) -> None:
        child.instance = message["instance"]
        slot = self._slot_of(child)
        if child is slot.current:
            self._let_run(child)
        elif self._is_rolling and slot.current is not None and not slot.current.stops:
            self._stop(slot.current)
        if not self._has_been_ready and not self._stops:
            self._has_been_ready = True
            for other in self.slots[1:]:
                other.start_at = time.monotonic()

    def _up(self, child: Child, message: Message) -> None:
        child.up_at = time.monotonic()
        slot = self._slot_of(child)
        if not self._has_been_up:
            self._has_been_up = True
            log_started(self._processes.name, StartFacts(**message["facts"]), self._processes.count)
        elif slot.has_been_up:
            log.info("worker %s started again (pid %d)", child.worker_id, child.pid)
        slot.has_been_up = True

    def _retiring(self, child: Child, message: Message) -> None:
        slot = self._slot_of(child)
        if slot.standby is None and not slot.is_closed and not self._stops:
            slot.standby = self._started(slot)

    def _dismissed(self, child: Child, message: Message) -> None:
        """An operator ordered it to stop (O13): nothing takes its place."""
        slot = self._slot_of(child)
        slot.is_closed = True
        for one in slot.children:
            if not one.stops:
                self._stop(one)

    def _recorded(self, child: Child, message: Message) -> None:
        self._pending_deaths.recorded(message["instance"])

    def _slot_of(self, child: Child) -> WorkerSlot:
        return next(slot for slot in self.slots if child in slot.children)

    # Ends --------------------------------------------------------------------------------------------------------

    def _ended(self, slot: WorkerSlot, child: Child, return_code: int) -> None:
        child.close()
        # Only one that was allowed to run can have had leases; one that ended as planned has given them back.
        if child.instance is not None and child.may_run and return_code not in (0, EXIT_REPLACE):
            cause = f"{described(return_code)}, seen by its supervisor"
            self._pending_deaths.add(ChildDeath(child.worker_id, child.instance, cause, time.monotonic()))
        is_planned = bool(child.stops) or return_code == EXIT_REPLACE
        is_death = (not is_planned and return_code != 0) or return_code < 0
        if self._metrics is not None:
            self._metrics.ended(child, is_death=is_death)
        if is_death:
            log.error("worker %s ended: %s, seen by its supervisor", child.worker_id, described(return_code))
        if child is slot.standby:
            slot.standby = None
            self._standby_ended(slot)
            return
        slot.current, slot.standby = slot.standby, None
        if self._stops:
            self._exit_code = self._exit_code or (exit_status(return_code) if return_code != EXIT_REPLACE else 0)
        elif slot.is_closed or (self._processes.drains and return_code == 0):
            slot.is_closed = True
            self._exit_code = self._exit_code or (exit_status(return_code) if return_code != EXIT_REPLACE else 0)
            if slot.current is not None and not slot.current.stops:
                self._stop(slot.current)
        elif slot.current is not None:
            if slot.current.is_ready:
                self._let_run(slot.current)
        elif is_planned:
            slot.start_at = time.monotonic()
        else:
            self._died(slot, child, return_code)

    def _standby_ended(self, slot: WorkerSlot) -> None:
        """The current process works on. One that is replaced for --max-jobs ends anyway, and is then started again."""
        if self._is_rolling and not self._stops:
            self._is_rolling = False
            log.error("restart abandoned: the new process of worker %s did not become ready", slot.worker_id)

    def _died(self, slot: WorkerSlot, child: Child, return_code: int) -> None:
        if return_code in FATAL or (return_code > 0 and not self._has_been_up):
            self._give_up(exit_status(return_code), f"worker {child.worker_id} cannot run: {described(return_code)}")
            return
        delay_s = slot.restarts.delay_s(child.up_s(time.monotonic()))
        slot.start_at = time.monotonic() + delay_s
        if self._is_crash_loop():
            count = slot.restarts.quick_deaths
            self._give_up(EXIT_CRASH_LOOP, f"every process has died {count} times in a row soon after its start")
        elif delay_s:
            log.warning("worker %s is started again in %g s", child.worker_id, delay_s)

    def _is_crash_loop(self) -> bool:
        now, slots = time.monotonic(), self.slots if self._has_been_ready else self.slots[:1]
        return all(
            slot.restarts.are_given_up(None if slot.current is None else slot.current.up_s(now))
            for slot in slots
            if not slot.is_closed
        )

    def _give_up(self, exit_code: int, why: str) -> None:
        log.critical("%s: the supervisor ends with exit code %d", why, exit_code)
        self._exit_code = exit_code
        self._stop_all()

    # Stopping and restarting -------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        is_hangup = number == signal.SIGHUP
        if number in (signal.SIGTERM, signal.SIGINT) or (is_hangup and self._signals.has_lost_terminal()):
            self._stop_all()
        elif is_hangup and not self._stops:
            self.restart()

    def _stop_all(self) -> None:
        """All at once; a second time, they do not wait for handlers."""
        self._stops += 1
        for slot in self.slots:
            slot.start_at = None
            for child in slot.children:
                self._stop(child)

    def _stop(self, child: Child) -> None:
        child.stop(time.monotonic(), self._processes.shutdown_s + KILL_AFTER_S)

    def restart(self) -> None:
        """Replace the processes one after the other: the next one is stopped when the one before is up again."""
        log.info("restarting %d processes one after the other", len(self.slots))
        self._generation += 1
        self._is_rolling = True

    def _roll(self) -> None:
        if not self._is_rolling or self._stops:
            return
        # One slot at a time: the first that does not run the new code yet is dealt with, and the others wait. So at
        # most one process is missing, and code that cannot start takes down none that works.
        for slot in self.slots:
            current, standby = slot.current, slot.standby
            if slot.is_closed or (
                current is not None and current.generation == self._generation and current.up_at is not None
            ):
                continue
            if standby is not None and standby.generation < self._generation and not standby.stops:
                self._stop(standby)
            elif standby is None and current is not None and current.generation < self._generation:
                slot.standby = self._started(slot)
                if slot.standby is None:
                    self._standby_ended(slot)
            return
        self._is_rolling = False
        log.info("all processes were restarted")

    # Metrics ----------------------------------------------------------------------------------------------------

    def _ask_for_samples(self) -> None:
        for slot in self.slots:
            for child in slot.children:
                if self._metrics is not None and child.may_run:
                    self._metrics.ask(child)

    def _add_samples(self, child: Child, message: Message) -> None:
        if self._metrics is not None:
            self._metrics.received(child, message)

    # Deaths ------------------------------------------------------------------------------------------------------

    def _pass_deaths(self) -> None:
        """Pass each death to one process at a time, and to another if that one does not confirm it."""
        at_work = self._at_work()
        if at_work:
            for death in self._pending_deaths.due(time.monotonic()):
                self._pass_death(death, at_work[(death.tries - 1) % len(at_work)])

    def _at_work(self) -> list[Child]:
        return [child for slot in self.slots for child in slot.children if child.is_at_work]

    def _pass_death(self, death: ChildDeath, child: Child) -> None:
        child.send({"do": "death", "worker": death.worker, "instance": death.instance, "cause": death.cause})
