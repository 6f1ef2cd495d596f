"""Admission: jobs that have arrived take their places in their lanes.

An enqueue into a lane only writes an arrival, so that a transaction of a user's locks no lane. One admission at a time,
in all processes together, then puts arrivals in the order of their numbers at the ends of their lanes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from psycopg.errors import LockNotAvailable

from leasemill.store.postgres.known import Known
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, Steps, send

ADMITTED_AT_ONCE: Final = 2_000
LONGEST_WAIT_MS: Final = 1_000
"""For an admission that is under way."""


def admission(known: Known) -> tuple[Execute, Execute]:
    """The two statements, for a message in a transaction. Jobs of a lane that another transaction has locked are left
    to the next admission."""
    given = {"admission_key": known.admission_key, "limit": ADMITTED_AT_ONCE}
    return Execute("arrive", given), Execute("admit", given)


def admit(known: Known) -> Steps[bool]:
    """Admit in a transaction. False: another admission is under way."""
    _, ((is_open, _),), admitted, _ = yield from send(BEGIN, *admission(known), COMMIT)
    known.positions.lower(admitted)
    return bool(is_open)


def admit_or_wait(known: Known) -> Steps[None]:
    """Admit what had arrived when this was called, or wait for an admission that does, unless that takes long."""
    if (yield from admit(known)):
        return
    brief = Execute("lock_timeout", {"milliseconds": str(LONGEST_WAIT_MS)})
    with suppress(LockNotAvailable):
        yield from send(BEGIN, brief, lock_admission(known), COMMIT)


def lock_admission(known: Known) -> Execute:
    """Wait until no other admission is under way; none begins before the transaction ends."""
    return lock(known.admission_key)


def lock(key: int) -> Execute:
    """Wait for a lock of this number, which the transaction then has until it ends."""
    return Execute("lock_number", {"key": key})
