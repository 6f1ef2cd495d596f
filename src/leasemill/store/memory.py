"""`memory:` the kernel behind a lock. For tests and for trying things: gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check, run
from leasemill.kernel.state import State
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.kernel.verbs.expire import expirations
from leasemill.store.access_keys import MemoryKeys
from leasemill.store.base import Store, Watch
from leasemill.store.notifications import Cancellations, Ends, Signal, Subscription
from leasemill.store.presence import MemoryPresence
from leasemill.store.system import Clock, Entropy, SteadyClock

AnswerT = TypeVar("AnswerT")


class MemoryStore(Store):
    """A store in this process: a state, a lock and a clock."""

    name = "memory:"

    def __init__(self, clock: Clock | None = None, entropy: Entropy | None = None) -> None:
        super().__init__(entropy, has_test_clock=clock is not None)
        self.presence = MemoryPresence(order_of=self.order)
        self.keys = MemoryKeys()
        self._clock = clock or SteadyClock()
        self._state = State()
        self._lock = threading.Lock()
        self._signal = Signal()
        self._ends = Ends()
        self._cancellations = Cancellations()
        self._is_closed = False

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        with self._lock:
            if self._is_closed:
                raise Unavailable("this memory: store is closed; open another")
            events, answer = run(self._state, command, self._clock.now())
            expired = expirations(self._state, events)
            is_run_cancelled = isinstance(command, c.Cancel | c.CancelGroup) and cancels_a_run(self._state, events)
        if events:
            self._signal.notify()
            self._ends.observe(events)
        if is_run_cancelled:
            self._cancellations.notify()
        self.expiries.notify(expired)
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        return self.run(command)

    def watch(self, queues: Sequence[str]) -> Watch:
        return self._signal.watch()

    def watch_end(self, job_id: str) -> Watch:
        return self._ends.watch(job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._cancellations.call(wake)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._ends.notify_all()
