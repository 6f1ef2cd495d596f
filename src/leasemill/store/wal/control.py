"""The control page: a few numbers all processes of a boot share in memory, in the lock file.

Written under the lock, but for the poison mark. It holds nothing that the log does not: after a boot it is made anew.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from leasemill.store.wal.disk import Disk

BOOT: Final = slice(0, 16)
GENERATION: Final = 2
TAIL: Final = 3
HOLDER: Final = 4
POISON: Final = 5
SEGMENT: Final = 6
FOLDER: Final = 7
FULL: Final = 8
LAST: Final = 9
ACQUIRE: Final = 10


class Control:
    """`identity` is that of the boot and the lock file: a page of another is not current."""

    __slots__ = ("_bytes", "_digest", "_me", "_numbers")

    def __init__(self, disk: Disk, identity: str) -> None:
        self._bytes = disk.control
        self._numbers = self._bytes.cast("Q")
        self._digest = hashlib.blake2b(identity.encode(), digest_size=16).digest()
        self._me = int.from_bytes(os.urandom(8), "little") | 1

    def close(self) -> None:
        self._numbers.release()

    @property
    def is_current(self) -> bool:
        """Whether the log's tail has been looked at in this boot, so that the page can be relied on."""
        return self._bytes[BOOT] == self._digest

    def begin(self, generation: int, segment: int, tail: int) -> None:
        self.generation = generation
        self.segment = segment
        self.tail = tail
        self.is_poisoned = False
        self.is_folder_unsynced = False
        self.is_full = False
        self._bytes[BOOT] = self._digest

    @property
    def generation(self) -> int:
        return self._numbers[GENERATION]

    @generation.setter
    def generation(self, value: int) -> None:
        self._numbers[GENERATION] = value

    @property
    def tail(self) -> int:
        """Where the log ended when a process last appended: a frame may follow whose writer died before saying so."""
        return self._numbers[TAIL]

    @tail.setter
    def tail(self, value: int) -> None:
        self._numbers[TAIL] = value

    @property
    def segment(self) -> int:
        """Where the last segment begins."""
        return self._numbers[SEGMENT]

    @segment.setter
    def segment(self, value: int) -> None:
        self._numbers[SEGMENT] = value

    @property
    def is_poisoned(self) -> bool:
        """A sync failed: nothing that was not known to be synced may be acknowledged until recovery."""
        return self._numbers[POISON] != 0

    @is_poisoned.setter
    def is_poisoned(self, value: bool) -> None:
        self._numbers[POISON] = int(value)

    @property
    def is_folder_unsynced(self) -> bool:
        """The manifest was replaced, or is being: a crash of the machine could undo that."""
        return self._numbers[FOLDER] != 0

    @is_folder_unsynced.setter
    def is_folder_unsynced(self, value: bool) -> None:
        self._numbers[FOLDER] = int(value)

    @property
    def is_full(self) -> bool:
        """There was no room for another segment when a process last looked."""
        return self._numbers[FULL] != 0

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self._numbers[FULL] = int(value)

    @property
    def acquire_digest(self) -> int:
        """Of the list of acquire queues in the manifest: a process that read another list reads it again."""
        return self._numbers[ACQUIRE]

    @acquire_digest.setter
    def acquire_digest(self, value: int) -> None:
        self._numbers[ACQUIRE] = value

    @property
    def holder(self) -> int:
        """The process that holds the lock."""
        return self._numbers[HOLDER]

    def take(self) -> bool:
        """With the lock just taken: tells whether nobody else has had it since `leave`."""
        numbers = self._numbers
        was_mine = numbers[LAST] == self._me
        numbers[LAST] = 0
        numbers[HOLDER] = os.getpid()
        return was_mine

    def leave(self) -> None:
        """About to unlock, with all that was written told in the tail."""
        self._numbers[LAST] = self._me
