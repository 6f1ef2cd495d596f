"""Group commit: callers that come at the same time share one append and one sync.

Whoever comes first leads: it takes all that wait, has them carried out, and hands the lead to one that came meanwhile.
Callers in threads lead themselves; for callers in event loops a thread of the pipeline does.

Threads woken all at once only queue for the interpreter. A crowd of callers that ask again at once is therefore woken
in a chain: each, when it comes back with its next call, wakes the next, and the last of them leads for all. (In a very
large crowd that gains nothing any more: there the next ones' work hides behind the sync of those before.) A chain
that is not carried on (one of them comes back late, or not at all) is broken by whoever tires of waiting first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final

from leasemill.store.wal.weight import weigh

BATCH_TICKETS: Final = 1_000
BATCH_WEIGHT: Final = 64 * 1024 * 1024
CROWD: Final = range(2, 41)
HASTE_S: Final = 0.000_1
PATIENCE_S: Final = 0.002
PATIENCE_FOR_EACH_S: Final = 0.000_2
FOR_EVER: Final = -1.0


class Ticket:
    """One call: what is asked, and then what was answered. No command: only catch up with what others wrote."""

    __slots__ = (
        "_future",
        "_loop",
        "_woken",
        "answer",
        "command",
        "error",
        "is_durable",
        "is_hasty",
        "is_leader",
        "weight",
    )

    def __init__(self, command: Any, *, is_durable: bool = True) -> None:
        self.command = command
        self.weight = weigh(command)
        self.is_durable = is_durable
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_leader = False
        self.is_hasty = False
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

    def wait(self, patience_s: float) -> bool:
        """Tells whether it was woken."""
        assert self._woken is not None
        return self._woken.acquire(timeout=patience_s)

    def wake(self) -> None:
        if self._woken is not None and self._woken.locked():
            self._woken.release()

    def fail(self, error: Exception) -> None:
        """With an error object of its own: callers raise it in their threads and add notes to it."""
        if self.error is not None:
            return
        own = type(error).__new__(type(error), *error.args).with_traceback(error.__traceback__)
        own.__cause__ = error.__cause__
        self.error = own

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
        self._chain: deque[Ticket] = deque()
        self._caller = threading.local()
        self._is_led = False
        self._loop_leader: threading.Thread | None = None
        self._errands: SimpleQueue[bool] = SimpleQueue()

    def run(self, ticket: Ticket) -> Any:
        caller = self._caller
        ticket.is_hasty = monotonic() - getattr(caller, "answered_at", 0.0) < HASTE_S
        try:
            with self._guard:
                self._join(ticket)
                patience_s = self._patience_s(ticket)
                if not ticket.is_leader:
                    ticket.for_thread()
            if not ticket.is_leader:
                self._wait(ticket, patience_s)
            if ticket.is_leader:
                self._lead(ticket)
        except BaseException:
            self._abandon(ticket)
            raise
        caller.answered_at = monotonic()
        return ticket.outcome()

    async def arun(self, ticket: Ticket) -> Any:
        future = ticket.for_loop()
        with self._guard:
            self._join(ticket)
            leads = ticket.is_leader
        if leads:
            self._wake_loop_leader()
        await future
        return ticket.outcome()

    def _join(self, ticket: Ticket) -> None:
        """Wait with the others, and carry the chain on; lead, if it has come to its end and nobody does."""
        self._waiting.append(ticket)
        if self._chain:
            self._chain[0].wake()
            self._chain.popleft()
        if not self._is_led and not self._chain:
            self._is_led = ticket.is_leader = True

    def _patience_s(self, ticket: Ticket) -> float:
        """Only those in haste get into a chain, and the last of a chain was not alone when it came: that one will
        see when the chain is not carried on. The others wait until they are woken."""
        if not ticket.is_hasty or len(self._waiting) < CROWD.start:
            return FOR_EVER
        return PATIENCE_S + PATIENCE_FOR_EACH_S * (len(self._waiting) + len(self._chain))

    def _wait(self, ticket: Ticket, patience_s: float) -> None:
        while not ticket.wait(patience_s):
            self._break_chain()
            patience_s *= 2

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
        self._break_chain()
        if ticket.is_leader:
            self._hand_over(ticket)

    def _lead(self, own: Ticket | None) -> None:
        """Carry out what waits, `own` with it, and hand over."""
        with self._guard:
            batch = self._taken(own)
        try:
            self._carry_out(batch)
        finally:
            chain, others = _parted(batch, own)
            try:
                self._hand_over(own, chain)
            finally:
                self._tell(others)

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

    def _hand_over(self, own: Ticket | None, chain: Sequence[Ticket] = ()) -> None:
        """The next to lead is one that waits, or the last of the chain."""
        with self._guard:
            if own is not None:
                own.is_leader = False
            self._is_led = False
            self._chain.extend(chain)
            heir = None if self._chain else self._heir()
        self._wake(heir)

    def _break_chain(self) -> None:
        """It is not carried on: wake all that are left of it, and lead for those that wait."""
        with self._guard:
            if not self._chain:
                return
            left, self._chain = self._chain, deque()
            heir = self._heir()
        for ticket in left:
            ticket.wake()
        self._wake(heir)

    def _heir(self) -> Ticket | None:
        """Who leads next, if any wait: one in a thread rather than one in an event loop."""
        heir = next((ticket for ticket in self._waiting if not ticket.is_async), None)
        heir = heir or next(iter(self._waiting), None)
        if heir is not None:
            self._is_led = heir.is_leader = True
        return heir

    def _wake(self, heir: Ticket | None) -> None:
        if heir is None:
            return
        if heir.is_async:
            self._wake_loop_leader()
        else:
            heir.wake()

    @staticmethod
    def _tell(answered: list[Ticket]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for ticket in answered:
            if ticket._future is not None and ticket._loop is not None:
                loops.setdefault(ticket._loop, []).append(ticket._future)
            else:
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


def _parted(batch: list[Ticket], own: Ticket | None) -> tuple[list[Ticket], list[Ticket]]:
    """Those of a batch that a chain wakes, if they are a crowd that asks again at once, and the others."""
    if own is not None and own.is_hasty:
        chain = [ticket for ticket in batch if ticket.is_hasty and ticket is not own]
        if len(chain) in CROWD:
            return chain, [ticket for ticket in batch if not ticket.is_hasty]
    return [], [ticket for ticket in batch if ticket is not own]


def _finish(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
