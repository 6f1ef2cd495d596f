"""Group commit: callers that come at the same time share one append and one sync, or one transaction.

Whoever comes first leads: it takes all that wait, runs them as one batch, and passes the lead to one that came
meanwhile. Callers in threads lead themselves; for callers in event loops a thread of the pipeline does.

A batch is cut before it gets too long or too heavy: a call weighs as many bytes as it may take, at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

BATCH_TICKETS: Final = 1_000
BATCH_WEIGHT: Final = 64 * 1024 * 1024


class Ticket(Struct, eq=False):
    """A command, and then its answer or error."""

    command: Any
    weight: int = 0
    answer: Any = None
    error: BaseException | None = None
    is_leader: bool = False
    future: asyncio.Future[None] | None = None
    _woken: threading.Lock | None = None

    @property
    def is_async(self) -> bool:
        return self.future is not None

    def for_thread(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def for_loop(self) -> asyncio.Future[None]:
        self.future = asyncio.get_running_loop().create_future()
        return self.future

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until the ticket is woken, by default without a limit; returns whether it was."""
        assert self._woken is not None
        return self._woken.acquire(timeout=timeout_s)

    def wake(self) -> None:
        if self._woken is not None and self._woken.locked():
            self._woken.release()

    def fail(self, error: Exception) -> None:
        """With an error object of its own: callers raise it in their threads and add notes to it. W1: a refusal that is
        not known to be durable is no answer, it is replaced."""
        own = type(error).__new__(type(error), *error.args).with_traceback(error.__traceback__)
        own.__cause__ = error.__cause__
        vars(own).update(vars(error))
        self.error = own


TicketT = TypeVar("TicketT", bound=Ticket)


class Pipeline(Generic[TicketT]):
    """`run_batch` gets batches of tickets, one batch at a time, and sets each ticket's answer or error. It raises no
    Exception."""

    def __init__(self, run_batch: Callable[[list[TicketT]], None], name: str, most_weight: int = BATCH_WEIGHT) -> None:
        self._run_batch = run_batch
        self._name = name
        self._most_weight = most_weight
        self.reset()

    def reset(self) -> None:
        """Forget every caller and thread: a forked child has none of them."""
        self._lock = threading.Lock()
        self._waiting: list[TicketT] = []
        self._is_led = False
        self._is_closed = False
        self._loop_leader: threading.Thread | None = None
        self._batches_due: SimpleQueue[bool] = SimpleQueue()

    def run(self, ticket: TicketT, within_s: float | None = None) -> Any:
        """Run a ticket and return its answer. If no batch takes it `within_s`, it is withdrawn and has none."""
        try:
            with self._lock:
                is_led = self._is_led
                if is_led:
                    self._waiting.append(ticket)
                    ticket.for_thread()
                else:
                    self._is_led = ticket.is_leader = True
            if is_led:
                if within_s is None or (not ticket.wait(within_s) and not self.withdraw(ticket)):
                    ticket.wait()
                if ticket.is_leader:
                    self._lead(ticket)
            else:
                self._carry_out([ticket], ticket)  # where nobody leads, nobody waits
        except BaseException:
            self._abandon(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    async def arun(self, ticket: TicketT) -> Any:
        await self.arun_together(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    async def arun_together(self, *tickets: TicketT) -> None:
        """Run tickets in this order, in one batch if they are not too heavy for it. Each gets its answer or error."""
        futures = [ticket.for_loop() for ticket in tickets]
        with self._lock:
            self._waiting += tickets
            leads = not self._is_led
            if leads:
                self._is_led = tickets[0].is_leader = True
        if leads:
            self._wake_loop_leader()
        for future in futures:
            await future

    def withdraw(self, ticket: TicketT) -> bool:
        """Take a ticket back, whose caller does not wait any more. False if it is in a batch already, or leads."""
        with self._lock:
            is_waiting = ticket in self._waiting and not ticket.is_leader
            if is_waiting:
                self._waiting.remove(ticket)
            return is_waiting

    def close(self, *, joins: bool = True) -> None:
        """End the thread that leads for event loops; another starts if one of them calls again, and ends with the
        batches that it is for. `joins`: wait for the end of the batch it is in."""
        with self._lock:
            self._is_closed = True
            leader, self._loop_leader = self._loop_leader, None
            batches_due, self._batches_due = self._batches_due, SimpleQueue()
        if leader is not None:
            batches_due.put(False)
            if joins:
                leader.join()

    def _abandon(self, ticket: TicketT) -> None:
        """Take out a ticket whose caller was interrupted: it must not run any more, nor lead."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        if ticket.is_leader:
            self._pass_lead(ticket)

    def _lead(self, own: TicketT | None) -> None:
        """Run what waits, `own` with it, and pass the lead."""
        with self._lock:
            batch = self._take(own)
        self._carry_out(batch, own)

    def _carry_out(self, batch: list[TicketT], own: TicketT | None) -> None:
        # The lead is passed before the callers are woken, so that the next batch is decided while this thread wakes the
        # callers of its own. Whether anybody waits is looked at under the lock, under which callers join: one that
        # comes now is either found here, or finds that nobody leads and leads itself. The `finally`s are for
        # interrupts: a batch without a leader, or a caller whom nobody wakes, would wait for ever.
        try:
            self._run_batch(batch)
        finally:
            try:
                with self._lock:
                    is_led = self._is_led = bool(self._waiting)
                    if own is not None:
                        own.is_leader = is_led
                if is_led:
                    self._pass_lead(own)
            finally:
                if own is None or len(batch) > 1:
                    _notify(batch, own)

    def _take(self, own: TicketT | None) -> list[TicketT]:
        """Take as many waiting tickets as make a sensible append; always with `own`."""
        batch = [] if own is None else [own]
        left = self._waiting
        if own is not None:
            left.remove(own)
        weight = 0 if own is None else own.weight
        taken = 0
        for ticket in left:
            weight += ticket.weight
            if len(batch) >= BATCH_TICKETS or (batch and weight > self._most_weight):
                break
            batch.append(ticket)
            taken += 1
        self._waiting = left[taken:]
        return batch

    def _pass_lead(self, own: TicketT | None) -> None:
        """Pass the lead to a ticket that waits, if any: to one of a thread rather than of an event loop, since the
        thread is waiting anyway, and for an event loop one has to be woken besides."""
        with self._lock:
            if own is not None:
                own.is_leader = False
            if not self._waiting:
                self._is_led = False
                return
            following = next((ticket for ticket in self._waiting if not ticket.is_async), self._waiting[0])
            following.is_leader = True
        if following.is_async:
            self._wake_loop_leader()
        else:
            following.wake()

    # The thread that leads for event loops

    def _wake_loop_leader(self) -> None:
        with self._lock:
            if self._loop_leader is None:
                self._start_loop_leader()
            self._batches_due.put(True)

    def _start_loop_leader(self) -> None:
        self._loop_leader = threading.Thread(
            target=self._lead_loops, args=(self._batches_due,), name=self._name, daemon=True
        )
        self._loop_leader.start()

    def _lead_loops(self, batches_due: SimpleQueue[bool]) -> None:
        try:
            while batches_due.get():
                self._lead(None)
                with self._lock:
                    if self._is_closed and self._batches_due is batches_due and batches_due.empty():
                        self._loop_leader = None
                        return
        except BaseException:
            with self._lock:
                if self._batches_due is batches_due:
                    self._start_loop_leader()  # its callers have their errors; those that follow get another leader
            raise


def _notify(batch: Sequence[Ticket], own: Ticket | None) -> None:
    """Wake the callers of these tickets, but for `own`; those of one event loop all at once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ticket in batch:
        if ticket.future is not None:
            loops.setdefault(ticket.future.get_loop(), []).append(ticket.future)
        elif ticket is not own:
            ticket.wake()
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits there
            loop.call_soon_threadsafe(_finish, futures)


def _finish(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
