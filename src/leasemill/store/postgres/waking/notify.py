"""NOTIFY when jobs come: in the statement that inserts them, or, when there are many, for all of them together.

Transactions that notify commit one at a time, each with its sync to disk: many of them would slow down every producer.
A transaction that only notifies writes nothing and has no sync.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leasemill.errors import LeasemillError
from leasemill.store.notifications import Signal
from leasemill.store.postgres.steps import Steps, Verb, rows, transact

REFILL_S: Final = 0.02
BURST: Final = 5
SOON_S: Final = 0.002
"""How long the thread waits for more jobs to come, before it notifies of all of them."""
MANY_PER_S: Final = 1_000
"""At this rate workers find jobs without being woken for each: the thread waits as long as a refill takes."""


class Notifier:
    """A few in a row, and one every REFILL_S, notify in their own statements; the others by a thread, soon after."""

    def __init__(self, channel: str, signal: Signal, send: Callable[[], None]) -> None:
        """`send`: notify other processes, for the thread. `signal`: for the waiting callers of this one."""
        self._channel = channel
        self._signal = signal
        self._send = send
        self._is_closed = False
        self.after_fork()

    def after_fork(self) -> None:
        """A child does not have the parent's thread."""
        self._changed = threading.Condition()
        self._left = float(BURST)
        self._counted_at_s = time.monotonic()
        self._is_pending = False
        self._held_back = 0
        self._thread: threading.Thread | None = None

    def channel(self) -> str | None:
        """The channel for a statement to notify; None: a notification follows shortly, for this one and others."""
        with self._changed:
            if self._is_closed:
                return self._channel  # no thread starts any more
            now_s = time.monotonic()
            self._left = min(BURST, self._left + (now_s - self._counted_at_s) / REFILL_S)
            self._counted_at_s = now_s
            if self._left >= 1 and not self._is_pending:
                self._left -= 1
                return self._channel
            self._held_back += 1
            if self._is_pending:
                return None  # its thread waits for the time to come: waking it would cost a change of threads
            self._is_pending = True
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="leasemill notify", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()
            return None

    def wake(self) -> Verb[None]:
        """Notify callers of this process and others: jobs may be claimable, and no statement has notified of them."""
        self._signal.notify()
        channel = self.channel()
        if channel is not None:
            yield from transact(lambda _: notification(channel))

    def stop(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, until_s: float) -> None:
        """Wait for its thread, until then on the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        """After the last of those it notifies of, it does so once more: that one may have committed only then."""
        wait_s, is_last_due = SOON_S, False
        while True:
            with self._changed:
                has_come = self._changed.wait_for(
                    lambda: self._is_pending or self._is_closed, REFILL_S if is_last_due else None
                )
                if self._is_closed:
                    return
                if has_come:
                    self._changed.wait_for(lambda: self._is_closed, wait_s)
                    self._is_pending = False
                    wait_s = SOON_S if self._held_back < MANY_PER_S * wait_s else REFILL_S
                    self._held_back = 0
                    self._left = 0.0
                    self._counted_at_s = time.monotonic()
            is_last_due = has_come
            with suppress(LeasemillError):
                self._send()


def notification(channel: str) -> Steps[None]:
    yield from rows("notify", {"channel": channel})
