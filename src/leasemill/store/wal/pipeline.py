"""Group commit: callers that come at the same time share one append and one sync.

Whoever comes first leads: it takes all that wait, runs them as one batch, and passes the lead to one that came
meanwhile. Callers in threads lead themselves; for callers in event loops a thread of the pipeline does.

A call weighs as many bytes as it may add to the log, at most, which is known before it is decided. One that weighs too
much is refused alone, and a batch is cut before it gets too heavy for one frame. Tokens of other calls that its events
repeat are counted as short, as those are that a store draws; should they not be, the log refuses the whole batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.schedules import CALL_BYTES
from leasemill.store.wal.format import LARGEST_BODY

BATCH_TICKETS: Final = 1_000
BATCH_WEIGHT: Final = 64 * 1024 * 1024
HEAVIEST_CALL: Final = LARGEST_BODY - 16 * 1024 * 1024  # the rest is left for what is pruned with it
ITEM_BYTES: Final = 2_000  # an event's ids, names, policy and numbers: all that has a small limit of its own
CHARACTER_BYTES: Final = 4
TEXTS: Final = (str, bytes)
READS: Final = (
    c.GetJob,
    c.GetKey,
    c.ListJobs,
    c.ListQueues,
    c.GetLane,
    c.ListLanes,
    c.ListActions,
    c.ListLimits,
    c.GetLimit,
    c.GetGroup,
    c.ListGroups,
    c.GetTotals,
    c.GetTime,
    c.DueIn,
    c.GetSchedule,
    c.ListSchedules,
    c.DueSchedules,
    c.NextTick,
)

_encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # any sequence is as good as a list


class Ticket:
    """A command, and then its answer or error. No command: only catch up with what others wrote."""

    __slots__ = ("_woken", "answer", "command", "error", "future", "is_durable", "is_leader", "weight")

    def __init__(self, command: Any, *, is_durable: bool = True) -> None:
        self.command = command
        self.weight = weigh(command)
        if self.weight > HEAVIEST_CALL:
            raise Invalid(f"{self.weight:,} bytes in one call; at most {HEAVIEST_CALL:,}: send smaller batches")
        self.is_durable = is_durable
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_leader = False
        self.future: asyncio.Future[None] | None = None
        self._woken: threading.Lock | None = None

    @property
    def is_async(self) -> bool:
        return self.future is not None

    def for_thread(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def for_loop(self) -> asyncio.Future[None]:
        self.future = asyncio.get_running_loop().create_future()
        return self.future

    def wait(self) -> None:
        assert self._woken is not None
        self._woken.acquire()

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


def weigh(command: Any) -> int:
    """Readings and what is not a command weigh nothing. Of any other command each text may be in two events (a refused
    report and the expiry it records), a reason in the event of each item, and an item may lead to three events."""
    if command is None or isinstance(command, READS):
        return 0
    items = getattr(command, "limit", 1)
    for value in astuple(command):
        if hasattr(value, "__len__") and not isinstance(value, TEXTS):
            items = max(items, len(value))
    scheduled_bytes = getattr(command, "most_jobs", 0) * (CALL_BYTES + 3 * ITEM_BYTES)  # their calls are in the record
    reason_bytes = CHARACTER_BYTES * len(getattr(command, "reason", ""))
    return 2 * len(_encode(command)) + items * (3 * ITEM_BYTES + reason_bytes) + scheduled_bytes


class Pipeline:
    """`run_batch` gets batches of tickets, one batch at a time, and sets each ticket's answer or error. It raises no
    Exception."""

    def __init__(self, run_batch: Callable[[list[Ticket]], None], name: str) -> None:
        self._run_batch = run_batch
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget every caller and thread: for a forked child, which has none of them."""
        self._guard = threading.Lock()
        self._waiting: list[Ticket] = []
        self._is_led = False
        self._loop_leader: threading.Thread | None = None
        self._batches_due: SimpleQueue[bool] = SimpleQueue()

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
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    async def arun(self, ticket: Ticket) -> Any:
        future = ticket.for_loop()
        with self._guard:
            self._waiting.append(ticket)
            leads = not self._is_led
            if leads:
                self._is_led = ticket.is_leader = True
        if leads:
            self._wake_loop_leader()
        await future
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def close(self) -> None:
        """End the thread that leads for event loops; another starts if one of them calls again."""
        with self._guard:
            leader, self._loop_leader = self._loop_leader, None
            batches_due, self._batches_due = self._batches_due, SimpleQueue()
        if leader is not None:
            batches_due.put(False)
            leader.join()

    def _abandon(self, ticket: Ticket) -> None:
        """Its caller was interrupted: it must not run any more, nor lead."""
        with self._guard:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        if ticket.is_leader:
            self._pass_lead(ticket)

    def _lead(self, own: Ticket | None) -> None:
        """Run what waits, `own` with it, and pass the lead."""
        with self._guard:
            batch = self._take(own)
        try:
            self._run_batch(batch)
        finally:
            try:
                self._pass_lead(own)
            finally:
                if own is None or len(batch) > 1:
                    _notify(batch, own)

    def _take(self, own: Ticket | None) -> list[Ticket]:
        """What waits, as much as makes a sensible append; always with `own`."""
        batch = [] if own is None else [own]
        left = self._waiting
        if own is not None:
            left.remove(own)
        weight = 0 if own is None else own.weight
        taken = 0
        for ticket in left:
            weight += ticket.weight
            if len(batch) >= BATCH_TICKETS or (batch and weight > BATCH_WEIGHT):
                break
            batch.append(ticket)
            taken += 1
        self._waiting = left[taken:]
        return batch

    def _pass_lead(self, own: Ticket | None) -> None:
        """To one that waits, if any: one in a thread rather than one in an event loop."""
        with self._guard:
            if own is not None:
                own.is_leader = False
            self._is_led = bool(self._waiting)
            if not self._waiting:
                return
            following = next((ticket for ticket in self._waiting if not ticket.is_async), self._waiting[0])
            following.is_leader = True
        if following.is_async:
            self._wake_loop_leader()
        else:
            following.wake()

    # The thread that leads for event loops

    def _wake_loop_leader(self) -> None:
        with self._guard:
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
        except BaseException:
            with self._guard:
                if self._batches_due is batches_due:
                    self._start_loop_leader()  # its callers have their errors; those that follow get another leader
            raise


def _notify(batch: list[Ticket], own: Ticket | None) -> None:
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
