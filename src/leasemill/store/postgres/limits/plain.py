"""A claim under limits where nothing is special: one statement, in the message that locks the limits.

What may be granted is guarded in the statement; whatever is not plain is left to `claim.Limited`, and so are the claims
that follow for a while. What must never happen here: a grant that the statement did not guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from leasemill.kernel import commands as c
from leasemill.kernel.model import QUEUE_LIMIT
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8, texts
from leasemill.store.postgres.wire.batch import Sent
from leasemill.store.postgres.wire.connections import Row

LOCKED: Final = "true"


class PlainClaimed(NamedTuple):
    """The result. Not `is_plain`: nothing was granted, and the claim is still to be made."""

    rows: list[Row]
    now: int
    is_locked: bool
    """Nobody else had locked the limits."""
    is_plain: bool
    has_arrived: bool
    has_expired: bool

    @property
    def taken(self) -> list[tuple[str, int, int, int]]:
        """The places in ready from which jobs were taken."""
        return [(row[1], 9 - row[5], row[21], row[22]) for row in self.rows]


class PlainClaim(NamedTuple):
    """One claim. `given`: the parameters it shares with claim.sql."""

    database: Database
    command: c.Claim
    given: dict[str, Any]
    names: list[str]
    expired_from: int

    def lock(self) -> Sent:
        """Waits for limits that others have locked."""
        return self.database.sent("lock_names", {"names": texts(self.names)})

    def claim(self) -> Sent:
        """Under the locks of its limits."""
        slots = self.command.slots
        given = {
            **self.given,
            "names": texts(self.names),
            "claimed": texts(dict.fromkeys(self.command.queues)),
            "slots": int8(None if slots is not None and slots >= self.command.limit else slots),
            "expired_from": int8(self.expired_from),
        }
        are_own = all(name.startswith(QUEUE_LIMIT) for name in self.names)
        return self.database.sent("claim_limited_queues" if are_own else "claim_limited", given)

    def claimed(self, rows: Sequence[Row], *, is_locked: bool = True) -> PlainClaimed:
        has_arrived, has_expired, is_plain = rows[-1][24:]
        granted = [row for row in rows if row[0] is not None]
        return PlainClaimed(granted, rows[-1][15], is_locked, is_plain, has_arrived, has_expired)

    def learn(self, found: PlainClaimed) -> None:
        """It is committed."""
        if found.is_plain:
            self.database.positions.advance((), found.taken, found.now, is_exhausted=False)
            if not found.rows and not found.has_expired:
                self.database.expiry_position.found_none(self.expired_from, found.now)
        elif found.is_locked:
            self.database.claimed_specially(self.command.queues)


def plain_claim(database: Database, command: c.Claim, given: dict[str, Any]) -> PlainClaim | None:
    """None: not to be tried."""
    queues = list(dict.fromkeys(command.queues))
    names = database.limit_names(queues)
    if not names or (command.slots is not None and command.slots <= 0) or not database.may_be_plain(queues):
        return None
    return PlainClaim(database, command, given, names, database.expiry_position.from_at())
