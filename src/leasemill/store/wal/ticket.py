"""One call on its way through the pipeline, and how many bytes it may add to the log, at most.

The weight is known before the call is decided. A call that weighs too much is refused alone, and a batch is cut before
it gets too heavy for one frame. Tokens of other calls that its events repeat are counted as short, as those are that a
store draws; should they not be, the log refuses the whole batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.store.wal.format import LARGEST_BODY

HEAVIEST_CALL: Final = LARGEST_BODY // 2  # the other half is left for what else is in its batch
ITEM_BYTES: Final = 2_000  # an event's ids, names, policy and numbers: all that has a small limit of its own
CHARACTER_BYTES: Final = 4


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
        """With an error object of its own: callers raise it in their threads and add notes to it."""
        if self.error is not None:
            return
        own = type(error).__new__(type(error), *error.args).with_traceback(error.__traceback__)
        own.__cause__ = error.__cause__
        self.error = own


def weigh(command: Any) -> int:
    """Readings and what is not a command weigh nothing."""
    weigher = _WEIGHERS.get(type(command))
    return 0 if weigher is None else weigher(command)


def _texts(*texts: str) -> int:
    return CHARACTER_BYTES * sum(map(len, texts))


def _reports(reports: Sequence[Any]) -> int:
    return sum(2 * (ITEM_BYTES + CHARACTER_BYTES * len(report.token)) for report in reports)  # L3: an expiry, a refusal


def _payloads(items: Sequence[Any]) -> int:
    return sum(ITEM_BYTES + len(item.payload) for item in items)


def _claim(it: c.Claim) -> int:
    return 2 * ITEM_BYTES * it.limit + _texts(*it.tokens)  # L7: it may expire as many


def _commit(it: c.Commit) -> int:
    return ITEM_BYTES + CHARACTER_BYTES * len(it.token) + len(it.result or b"") + _payloads(it.followups)


def _ack(it: c.Ack) -> int:
    return _reports(it.reports) + sum(len(report.result or b"") for report in it.reports)


def _nack(it: c.Nack) -> int:
    return _reports(it.reports) + sum(_texts(report.error, report.report_id) for report in it.reports)


def _release(it: c.Release) -> int:
    return _reports(it.reports) + sum(_texts(report.error or "") for report in it.reports)


def _acquire(it: c.Acquire) -> int:
    return sum(3 * ITEM_BYTES + len(one.payload) + _texts(one.token) for one in it.requests)


def _cancel(it: c.Cancel) -> int:
    return len(it.job_ids) * (ITEM_BYTES + _texts(it.reason)) + _texts(*it.job_ids)


def _sweep(it: c.Redrive | c.Purge) -> int:
    return it.limit * (ITEM_BYTES + _texts(it.reason))


def _one(it: c.Pause | c.Resume | c.SetPolicy) -> int:
    return ITEM_BYTES + _texts(it.reason)


_WEIGHERS: Final[dict[type, Callable[[Any], int]]] = {
    c.Enqueue: lambda it: _payloads(it.jobs),
    c.Claim: _claim,
    c.Start: lambda it: _reports(it.reports),
    c.Extend: lambda it: _reports(it.leases),
    c.Commit: _commit,
    c.Ack: _ack,
    c.Nack: _nack,
    c.Release: _release,
    c.Expire: lambda it: ITEM_BYTES * it.limit,
    c.Acquire: _acquire,
    c.Cancel: _cancel,
    c.Redrive: _sweep,
    c.Purge: _sweep,
    c.Pause: _one,
    c.Resume: _one,
    c.SetPolicy: _one,
    c.Prune: lambda it: ITEM_BYTES * it.limit,
}
