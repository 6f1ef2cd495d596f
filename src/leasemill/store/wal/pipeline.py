"""Group commit: callers that come at the same time share one append and one sync.

Whoever comes first leads: it takes all that wait, has them carried out, and hands the lead to one that came meanwhile.
Callers in threads lead themselves; for callers in event loops a thread of the pipeline does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

BATCH_TICKETS: Final = 1_000
BATCH_WEIGHT: Final = 64 * 1024 * 1024


class Ticket:
    """One call: what is asked, and then what was answered."""

    __slots__ = ("_future", "_loop", "_woken", "answer", "command", "error", "is_durable", "is_leader", "weight")

    def __init__(self, command: Any, *, is_durable: bool = True, weight: int = 0) -> None:
        self.command = command
        self.weight = weight
        self.is_durable = is_durable
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_leader = False
        self._woken: threading.Lock | None = None
        self._future: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_async(self) -> bool:
        return self._future is not None

    def for_thread(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def for_loop(self) -> asyncio.Future[None]:
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        return self._future

    def wait(self) -> None:
        assert self._woken is not None
        self._woken.acquire()

    def wake(self) -> None:
        if self._woken is not None and self._woken.locked():
            self._woken.release()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


class Pipeline:
    """`carry_out` gets batches of tickets, one batch at a time, and sets each ticket's answer or error. It lets no
    Exception out."""

    def __init__(self, carry_out: Callable[[list[Ticket]], None], name: str) -> None:
        self._carry_out = carry_out
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget every caller and thread: for a forked child, which has none of them."""
        self._guard = threading.Lock()
        self._waiting: list[Ticket] = []
        self._is_led = False
        self._loop_leader: threading.Thread | None = None
        self._errands: SimpleQueue[bool] = SimpleQueue()

    def run(self, ticket: Ticket) -> Any:
        try:
            with self._guard:
                self._waiting.append(ticket)
                if self._is_led:
                    ticket.for_thread()
                else:
                    self._is_led = ticket.is_leader = True
            if not ticket.is_leader:
                ticket.wait()
            if ticket.is_leader:
                self._lead(ticket)
        except BaseException:
            self._abandon(ticket)
            raise
        return ticket.outcome()

    async def arun(self, ticket: Ticket) -> Any:
        future = ticket.for_loop()
        with self._guard:
            self._waiting.append(ticket)
            leads = not self._is_led
            if leads:
                self._is_led = True
        if leads:
            self._wake_loop_leader()
        await future
        return ticket.outcome()

    def close(self) -> None:
        """End the thread that leads for event loops; another starts if one of them still asks."""
        with self._guard:
            leader, self._loop_leader = self._loop_leader, None
            errands, self._errands = self._errands, SimpleQueue()
        if leader is not None:
            errands.put(False)
            leader.join()

    def _abandon(self, ticket: Ticket) -> None:
        """Its caller was interrupted: it must not be carried out any more, nor be handed the lead."""
        with self._guard:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        if ticket.is_leader:
            self._hand_over(ticket)

    def _lead(self, own: Ticket | None) -> None:
        """Carry out what waits, `own` with it, and hand over."""
        with self._guard:
            batch = self._taken(own)
        try:
            self._carry_out(batch)
        finally:
            try:
                self._hand_over(own)
            finally:
                self._tell(batch, own)

    def _taken(self, own: Ticket | None) -> list[Ticket]:
        """What waits, as much as makes a sensible append; always with `own`."""
        batch = [] if own is None else [own]
        left = [ticket for ticket in self._waiting if ticket is not own]
        weight = 0 if own is None else own.weight
        for ticket in left:
            weight += ticket.weight
            if len(batch) >= BATCH_TICKETS or (batch and weight > BATCH_WEIGHT):
                break
            batch.append(ticket)
        self._waiting = left[len(batch) - (own is not None) :]
        return batch

    def _hand_over(self, own: Ticket | None) -> None:
        with self._guard:
            if own is not None:
                own.is_leader = False
            if not self._waiting:
                self._is_led = False
                return
            heir = next((ticket for ticket in self._waiting if not ticket.is_async), None)
            if heir is not None:
                heir.is_leader = True
        if heir is None:
            self._wake_loop_leader()
        else:
            heir.wake()

    @staticmethod
    def _tell(batch: list[Ticket], own: Ticket | None) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for ticket in batch:
            if ticket._future is not None and ticket._loop is not None:
                loops.setdefault(ticket._loop, []).append(ticket._future)
            elif ticket is not own:
                ticket.wake()
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits there
                loop.call_soon_threadsafe(_finish, futures)

    def _wake_loop_leader(self) -> None:
        with self._guard:
            if self._loop_leader is None:
                self._start_loop_leader()
            self._errands.put(True)

    def _start_loop_leader(self) -> None:
        errands = self._errands
        self._loop_leader = threading.Thread(target=self._lead_loops, args=(errands,), name=self._name, daemon=True)
        self._loop_leader.start()

    def _lead_loops(self, errands: SimpleQueue[bool]) -> None:
        try:
            while errands.get():
                self._lead(None)
        except BaseException:
            with self._guard:
                if self._errands is errands:
                    self._start_loop_leader()  # its callers were told; those that come are led by another
            raise


def _finish(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
