"""When retention is at work: in rounds, in a thread beside the reaper's, a batch at a time with rests in between.

A round ends when nothing is left to forget and will not be soon, or when another process is found at it. Rests are long
compared with the batches before them, but never so long that jobs end faster than they are forgotten. What must never
happen here: a call of the reaper, or the end of a store, that waits for a rest.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.driver.url import PostgresOptions
from leasemill.store.postgres.reading import time as time_now
from leasemill.store.postgres.retention import BATCH, Pruned, Retention
from leasemill.store.postgres.steps import Verb, transact

LOGGER: Final = logging.getLogger("leasemill.postgres")

EVERY_S: Final = 30.0
"""Between the beginnings of rounds; also how long jobs alone are forgotten before the other things have their turn."""
FIRST_S: Final = 1.0
"""From the opening of the store to its first round: who opens it for a call or two forgets nothing."""
SHARE: Final = 0.1
"""The share of the time that retention works, as long as that is fast enough."""
KEEPS_UP: Final = 1.25
"""Times the rate at which jobs end: how fast they are forgotten at least, while there are too many."""
LEAST_REST: Final = 0.1
"""The rest after a batch, as a share of its time, even if more is left to do."""
CATCHES_UP_S: Final = 60.0
"""In how long what is too much is forgotten, if that takes no longer than batches with their least rests."""
LOOKS_EVERY_S: Final = 0.1
"""At most, while jobs end fast and none is too much."""
MEASURED_S: Final = 1.0
"""Over how long the rate at which jobs end is taken."""
SETTLED_US: Final = 60 * SECOND
"""After this long every job that ended at a time is visible: no transaction that ends jobs takes so long."""
FEWEST_ROWS: Final = 8


def rest_s(took_s: float, forgotten: int, ended_per_s: float, surplus: int = 0) -> float:
    """How long to rest after a batch that took so long, while jobs end at this rate and so many are too much."""
    lazily_s = took_s * (1 / SHARE - 1)
    wanted_per_s = KEEPS_UP * ended_per_s + surplus / CATCHES_UP_S
    if forgotten == 0 or wanted_per_s <= 0:
        return lazily_s
    keeping_up_s = forgotten / wanted_per_s - took_s
    return max(took_s * LEAST_REST, min(lazily_s, keeping_up_s))


def until_next_s(ended_per_s: float | None, room: int) -> float:
    """When none is too much, and there is room for so many: how long until a batch is. None: the rate is not known."""
    if ended_per_s is None:
        return MEASURED_S
    return max(LOOKS_EVERY_S, (room + BATCH) / ended_per_s) if ended_per_s else math.inf


def rows_for(limit: int, pruned: Pruned | None) -> int:
    """In how many rows of finished as many jobs are likely to be, going by the batch before; at most one in each."""
    if pruned is None or pruned.forgotten == 0:
        return limit
    return min(limit, FEWEST_ROWS + 2 * limit * pruned.row_count // pruned.forgotten)


class EndRate:
    """How many jobs succeed in a second, from how many there are and how many were forgotten meanwhile."""

    def __init__(self) -> None:
        self.per_s: float | None = None
        """None: not known yet."""
        self._since: tuple[float, int] | None = None
        self._forgotten = 0

    def note(self, now_s: float, pruned: Pruned) -> None:
        ended = pruned.succeeded + self._forgotten
        self._forgotten += pruned.forgotten
        if self._since is None:
            self._since = now_s, ended
            return
        since_s, before = self._since
        if now_s - since_s >= MEASURED_S:
            self.per_s = max(0.0, (ended - before) / (now_s - since_s))
            self._since = now_s, ended


class RetentionLoop:
    """Runs the rounds of one store."""

    def __init__(self, threads: ThreadDriver, retention: Retention, options: PostgresOptions) -> None:
        self._threads = threads
        self._retention = retention
        self._options = options
        self._due_at_s = time.monotonic() + FIRST_S
        self._start_over()

    def _start_over(self) -> None:
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        was_stopped = self._stopped.is_set()
        self._start_over()
        if was_stopped:
            self._stopped.set()

    def begin(self) -> None:
        """Begin a round if it is time and none is under way. Returns at once."""
        with self._starting:
            is_at_it = self._thread is not None and self._thread.is_alive()
            if is_at_it or self._stopped.is_set() or time.monotonic() < self._due_at_s:
                return
            self._due_at_s = time.monotonic() + EVERY_S
            thread = threading.Thread(target=self._run, name="leasemill-retention", daemon=True)
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """A round under way ends after its batch; none begins any more."""
        with self._starting:
            self._stopped.set()

    def join(self, until_s: float) -> None:
        """Wait for its end, until then on the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        rate = EndRate()
        try:
            while self._round(rate):
                pass
        except Unavailable as error:
            if not self._stopped.is_set():
                LOGGER.warning("retention postponed: %s", error)
        except LeasemillError as error:
            LOGGER.error("retention failed, and is tried again in %.0f s: %s", EVERY_S, error)

    def _round(self, rate: EndRate) -> bool:
        """Return True to go on at once: jobs are left to be forgotten."""
        retention, run = self._retention, self._threads.run
        now = run(transact(lambda _: time_now()))
        prune = c.Prune(now - int(self._options.retain_for_s * SECOND), self._options.retain_count, BATCH)
        run(retention.fold_groups())
        self._repeat(retention.forget_requests)
        self._repeat(retention.forget_rates)
        self._repeat(retention.forget_keys)
        is_unfinished = self._prune(prune, rate, now - SETTLED_US, time.monotonic() + EVERY_S)
        self._repeat(lambda: retention.prune_groups(prune))
        return is_unfinished and not self._stopped.is_set()

    def _repeat(self, forget: Callable[[], Verb[int]]) -> None:
        """As long as there may be more."""
        is_full = True
        while is_full and not self._stopped.is_set():
            began_s = time.monotonic()
            is_full = self._threads.run(forget()) == BATCH
            if is_full:
                self._stopped.wait(rest_s(time.monotonic() - began_s, 0, 0.0))

    def _prune(self, prune: c.Prune, rate: EndRate, settled_at: int, until_s: float) -> bool:
        """Forget jobs until then. Whether there are more, or soon will be, and nobody else is at it.

        A round that ended as soon as none was too much would let half a minute's jobs come together before the next.
        From where the last batch ended on: rows that are gone are not looked at again, even if a snapshot keeps them.
        """
        pruned: Pruned | None = None
        from_at = 0
        while not self._stopped.is_set():
            began_s = time.monotonic()
            forgetting = self._retention.prune_some(prune, from_at=from_at, rows=rows_for(prune.limit, pruned))
            pruned = self._threads.run(forgetting)
            ended_s = time.monotonic()
            if pruned is None:
                return False
            rate.note(ended_s, pruned)
            if pruned.forgotten == prune.limit or (pruned.forgotten and pruned.has_more_rows):
                assert pruned.last_at is not None
                from_at = max(from_at, min(pruned.last_at, settled_at))
                surplus = max(0, pruned.succeeded - pruned.forgotten - prune.keep)
                pause_s = rest_s(ended_s - began_s, pruned.forgotten, rate.per_s or 0.0, surplus)
            else:
                pause_s = until_next_s(rate.per_s, max(0, prune.keep - pruned.succeeded))
                if pause_s >= EVERY_S:
                    return False
            if ended_s >= until_s:
                return True
            self._stopped.wait(pause_s)
        return False
