"""Syncs that processes share: who finds its position covered by another's sync does not sync again (W1).

One process at a time syncs a segment for all, holding the lock of that segment's file. What it covers is all that was
appended when it began; it records that on the control page, in a slot of its own for each generation and boot, so that
a record that comes late is read by nobody. What must never happen here: a position recorded that no sync has covered.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final

from leasemill.store.wal.control import FIRST_SLOT, SLOTS, SYNC_TURN, Control
from leasemill.store.wal.disk import File

LONGEST_WAIT_S: Final = 0.1
"""For the sync of another process, which may have been stopped in the middle of it."""
FIRST_PAUSE_S: Final = 0.000_02
LONGEST_PAUSE_S: Final = 0.000_2


class Turn(Enum):
    COVERED = "another's sync has covered the position"
    FOR_ALL = "this process syncs, and records what that covers"
    ALONE = "this process syncs for itself, beside one that does not get on"


class SharedSyncs:
    """What the processes of a folder know of each other's syncs."""

    __slots__ = ("_boot", "_longest_wait_s", "_page", "_stuck_turn")

    def __init__(self, control: Control, lock_timeout_s: float) -> None:
        self._page = control.page
        self._boot = int.from_bytes(control.digest[:8], "little")
        self._longest_wait_s = min(LONGEST_WAIT_S, lock_timeout_s)
        self._stuck_turn = -1

    def covered(self, generation: int) -> int:
        """Everything before this position is on disk, if no sync has failed; 0: nobody has recorded any yet."""
        slot = FIRST_SLOT + 2 * (generation % SLOTS)
        return self._page[slot + 1] if self._page[slot] == self._boot ^ generation else 0

    def record(self, generation: int, position: int) -> None:
        """Only by the process whose turn it is. The position comes first: what was there before is of another boot."""
        slot = FIRST_SLOT + 2 * (generation % SLOTS)
        self._page[slot + 1] = position
        self._page[slot] = self._boot ^ generation

    def await_turn(self, file: File, generation: int, position: int) -> Turn:
        """Wait until the position is covered or nobody else syncs the file, whose lock this process then has. A process
        that keeps the lock for long is waited for once, not in every call."""
        pause_s, until_s = FIRST_PAUSE_S, 0.0
        while not file.try_lock():
            if self.covered(generation) >= position:
                return Turn.COVERED
            now_s, turn = time.monotonic(), self._page[SYNC_TURN]
            until_s = until_s or now_s + self._longest_wait_s
            if now_s >= until_s or turn == self._stuck_turn:
                self._stuck_turn = turn
                return Turn.ALONE
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        if self.covered(generation) >= position:
            return Turn.COVERED
        self._page[SYNC_TURN] = (self._page[SYNC_TURN] + 1) % 2**32
        return Turn.FOR_ALL
