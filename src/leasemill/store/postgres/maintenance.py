"""The tasks of a store beside its verbs: expiry, admission, watermarks, retention.

The reaper's call does all of it, but for retention, which it begins. Claims look for expired leases too, every two
seconds (L7), before they are granted anything. A claim that was granted something does none of it before it returns;
one that was granted nothing does what may give it a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from psycopg.errors import LockNotAvailable

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.claim import LOOK
from leasemill.store.postgres.admin.durability import Durability
from leasemill.store.postgres.admission import ADMITTED_AT_ONCE, admit, admit_or_wait
from leasemill.store.postgres.exact.decide import decide_expired
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.retention import Retention
from leasemill.store.postgres.steps import Steps, TransactionAttempt, Verb, row, rows, transact
from leasemill.store.postgres.waking.notify import Notifier
from leasemill.store.postgres.watermarks import Watermarks

LOGGER: Final = logging.getLogger("leasemill.postgres")

LOOK_WAIT_MS: Final = 200


class Maintenance:
    """Keeps one store in order: its methods are verbs, some of them parts of others."""

    def __init__(self, known: Known, notifier: Notifier, begin_retention: Callable[[], None]) -> None:
        """`begin_retention`: called when the reaper is at work; returns at once."""
        self._known = known
        self._notifier = notifier
        self._begin_retention = begin_retention
        self.watermarks = Watermarks(known)
        self.retention = Retention(known)
        self._has_warned = False

    def after_fork(self) -> None:
        self.watermarks.after_fork()

    def run(self, limit: int) -> Verb[list[c.Expiration]]:
        """The reaper's call."""
        expired = yield from self.expire(limit, self._known.expiry_position.from_at())
        yield from self.admit()
        yield from self._move(self.watermarks.keep)
        self._begin_retention()
        yield from self._warn()
        return expired

    def look(self) -> Verb[None]:
        """L7, before a claim of which it was time: whatever there is to claim, what has expired is claimable too. It
        waits for nobody's locks for long, since slots may be empty meanwhile; the next look will be at those leases."""
        yield from self.expire(LOOK.limit, self._known.expiry_position.from_at(), longest_wait_ms=LOOK_WAIT_MS)

    def found_more(self, expired_from: int | None, has_arrived: bool) -> Verb[bool]:
        """After a claim that was granted nothing and saw these: whether it is worth another try."""
        if expired_from is not None:
            yield from self.expire(LOOK.limit, expired_from)
        if has_arrived:
            yield from transact(lambda _: admit_or_wait(self._known))
        if self.watermarks.are_due:
            yield from self._move(self.watermarks.move)
        if self.watermarks.must_be_checked:
            yield from self._move(self.watermarks.check)
            return True
        return has_arrived or expired_from is not None

    def expire(self, limit: int, from_at: int, *, longest_wait_ms: int | None = None) -> Verb[list[c.Expiration]]:
        """L7. Jobs whose rows somebody has locked are left for the next time; with `longest_wait_ms`, all of them are
        if what their ends concern, their groups, is locked for longer."""

        def work(_: TransactionAttempt) -> Steps[list[c.Expiration]]:
            given = {"from_at": from_at, "limit": limit}
            try:
                return (yield from decide_expired(self._known, c.Expire(limit), given, longest_wait_ms))
            except LockNotAvailable:
                if longest_wait_ms is None:
                    raise
                return []

        position = self._known.expiry_position
        position.looks()  # before it begins: claims beside this one, and after one that fails, do not look as well
        expired = yield from transact(work)
        if len(expired) == limit:
            position.look_again()
        yield from self.admit_caused()
        if expired:
            yield from self._notifier.wake()
        return expired

    def admit(self, count: int = 1) -> Verb[None]:
        """So many arrivals, at least, if there are. They are durable: an admission that fails, or finds another under
        way, is left to the next claim."""

        def work(_: TransactionAttempt) -> Steps[None]:
            for _batch in range(0, count, ADMITTED_AT_ONCE):
                if not (yield from admit(self._known)):
                    return

        try:
            yield from transact(work)
        except Unavailable as error:
            LOGGER.warning("admission to lanes postponed: %s", error)

    def admit_caused(self) -> Verb[None]:
        """Jobs that the ends just decided have caused take their places in their lanes."""
        if self._known.has_caused_arrivals:
            self._known.has_caused_arrivals = False
            yield from self.admit()

    def trim(self, leases: Sequence[c.Lease]) -> Verb[None]:
        """I8: executions beyond those that are kept go. That it failed keeps no claim from returning its leases."""
        nos = [self._known.leases[lease.token].no for lease in leases]
        given = {"nos": nos, "attempts": [lease.attempt for lease in leases]}
        try:
            yield from transact(lambda _: rows("trim", given))
        except Unavailable as error:
            LOGGER.warning("old executions not trimmed: %s", error)

    def _warn(self) -> Verb[None]:
        """Once: what the server's settings may lose. Who runs a reaper has a log that somebody reads."""
        if self._has_warned:
            return
        self._has_warned = True
        try:
            found = yield from transact(lambda _: row("durability", {}))
        except Unavailable as error:
            LOGGER.warning("the server's settings were not checked: %s", error)
            return
        settings = Durability(*found)
        for sentence in settings.warnings():
            LOGGER.warning("%s", sentence)
        for sentence in settings.notes():
            LOGGER.info("%s", sentence)

    def _move(self, move: Callable[[], Steps[None]]) -> Verb[None]:
        try:
            yield from transact(lambda _: move())
        except Unavailable as error:
            LOGGER.warning("watermarks not moved: %s", error)
