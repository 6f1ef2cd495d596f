"""The waits of this process for the ends of jobs (O9), as rows that every end of a job looks for.

The listener's thread does all of this, on its connection, for all waiters together: it adds and removes their rows,
receives ends on a channel of this process's own, and looks once a second for what was missed. A row counts as soon as
it is committed; an end that was under way then is waited for.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from psycopg import errors

from leasemill.store.notifications import Ends
from leasemill.store.postgres.driver.exchange import StoreConnection
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.steps import Row, rows

LOGGER: Final = logging.getLogger("leasemill.postgres")
LOOK_EVERY_S: Final = 1.0
RENEW_EVERY_S: Final = 20.0
AT_ONCE: Final = 5_000


class Waiters:
    """The rows of this process. Used by the listener's thread alone, but for `ends`."""

    def __init__(self, threads: ThreadDriver, ends: Ends) -> None:
        self.ends = ends
        self.channel = f"leasemill_{secrets.token_hex(12)}"
        self._threads = threads
        self._numbers: dict[int, str] = {}
        self._may_write = True
        self._may_lock = True
        self._looked_at_s = 0.0
        self._renewed_at_s = 0.0

    def listen(self, connection: StoreConnection) -> None:
        """On a new connection: notifications of an earlier one do not count."""
        self._numbers = {}
        self._threads.listen(connection, self.channel)

    def receive(self, payload: str) -> None:
        job_id = self._numbers.get(int(payload))
        if job_id is not None:
            self.ends.notify([job_id])

    def pause_s(self) -> float | None:
        """How long until the next look; None: nobody waits."""
        if not self.ends and not self._numbers:
            return None
        return max(0.0, self._looked_at_s + LOOK_EVERY_S - time.monotonic())

    def update(self, connection: StoreConnection) -> None:
        """Bring the rows up to date, and wake whoever waits for a job that has ended."""
        waiting = self.ends.job_ids()
        known = set(self._numbers.values())
        if self._numbers and (gone := {no for no, job_id in self._numbers.items() if job_id not in waiting}):
            self._remove(connection, gone)
        if time.monotonic() - self._renewed_at_s >= RENEW_EVERY_S and waiting:
            self._renewed_at_s = time.monotonic()
            known = set()
            self._write(connection, "forget_waiters", {})
        come = sorted(waiting - known)
        for first in range(0, len(come), AT_ONCE):
            self._add(connection, come[first : first + AT_ONCE])
        is_time = time.monotonic() - self._looked_at_s >= LOOK_EVERY_S
        self._look(connection, sorted(waiting) if is_time else come)
        if is_time:
            self._looked_at_s = time.monotonic()

    def _add(self, connection: StoreConnection, job_ids: list[str]) -> None:
        added = self._write(connection, "wait_for", {"ids": job_ids, "channel": self.channel})
        self._numbers.update(added)
        if not added or not self._may_lock:
            return
        try:
            nos = sorted(no for no, _ in added)
            self._threads.run_on(connection, rows("ends_under_way", {"nos": nos}))
        except errors.LockNotAvailable:
            return  # somebody stands still with the row locked; the next look sees the result
        except errors.InsufficientPrivilege:
            self._may_lock = False  # the next look finds an end that is under way now

    def _remove(self, connection: StoreConnection, nos: set[int]) -> None:
        for no in nos:
            del self._numbers[no]
        self._write(connection, "wait_no_more", {"nos": sorted(nos), "channel": self.channel})

    def _write(self, connection: StoreConnection, name: str, given: Mapping[str, Any]) -> list[Row]:
        """A role that only reads may wait too: ends are then found by looking."""
        if not self._may_write:
            return []
        try:
            return self._threads.run_on(connection, rows(name, given))
        except errors.InsufficientPrivilege as error:
            LOGGER.info("this role may not write to waiters, so ends are polled once a second: %s", error)
            self._may_write = False
            return []

    def _look(self, connection: StoreConnection, job_ids: list[str]) -> None:
        for first in range(0, len(job_ids), AT_ONCE):
            ended = rows("ended", {"ids": list(job_ids[first : first + AT_ONCE])})
            self.ends.notify(job_id for (job_id,) in self._threads.run_on(connection, ended))
