"""The control page: a few numbers all processes of a boot share in memory, in the lock file.

Written under the lock, but for the poison mark. It holds nothing that the log does not: after a boot it is made anew.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Final

from leasemill.store.wal.disk import Disk

BOOT: Final = slice(0, 16)
NUMBER: Final = struct.Struct("<Q")
GENERATION: Final = 16
TAIL: Final = 24
HOLDER: Final = 32
POISON: Final = 40
SEGMENT: Final = 48
FOLDER: Final = 56
FULL: Final = 64


class Control:
    """`identity` is that of the boot and the lock file: a page of another is not current."""

    __slots__ = ("_digest", "_disk")

    def __init__(self, disk: Disk, identity: str) -> None:
        self._disk = disk
        self._digest = hashlib.blake2b(identity.encode(), digest_size=16).digest()

    @property
    def is_current(self) -> bool:
        """Whether the log's tail has been looked at in this boot, so that the page can be relied on."""
        return self._disk.control[BOOT] == self._digest

    def begin(self, generation: int, segment: int, tail: int) -> None:
        self.generation = generation
        self.segment = segment
        self.tail = tail
        self.is_poisoned = False
        self.is_folder_unsynced = False
        self.is_full = False
        self._disk.control[BOOT] = self._digest

    @property
    def generation(self) -> int:
        return self._number(GENERATION)

    @generation.setter
    def generation(self, value: int) -> None:
        NUMBER.pack_into(self._disk.control, GENERATION, value)

    @property
    def tail(self) -> int:
        """Where the log ended when a process last appended: a frame may follow whose writer died before saying so."""
        return self._number(TAIL)

    @tail.setter
    def tail(self, value: int) -> None:
        NUMBER.pack_into(self._disk.control, TAIL, value)

    @property
    def segment(self) -> int:
        """Where the last segment begins."""
        return self._number(SEGMENT)

    @segment.setter
    def segment(self, value: int) -> None:
        NUMBER.pack_into(self._disk.control, SEGMENT, value)

    @property
    def is_poisoned(self) -> bool:
        """A sync failed: nothing that was not known to be synced may be acknowledged until recovery."""
        return self._number(POISON) != 0

    @is_poisoned.setter
    def is_poisoned(self, value: bool) -> None:
        NUMBER.pack_into(self._disk.control, POISON, int(value))

    @property
    def is_folder_unsynced(self) -> bool:
        """The manifest was replaced, or is being: a crash of the machine could undo that."""
        return self._number(FOLDER) != 0

    @is_folder_unsynced.setter
    def is_folder_unsynced(self, value: bool) -> None:
        NUMBER.pack_into(self._disk.control, FOLDER, int(value))

    @property
    def is_full(self) -> bool:
        """There was no room for another segment when a process last looked."""
        return self._number(FULL) != 0

    @is_full.setter
    def is_full(self, value: bool) -> None:
        NUMBER.pack_into(self._disk.control, FULL, int(value))

    @property
    def holder(self) -> int:
        """The process that holds the lock."""
        return self._number(HOLDER)

    def held(self) -> None:
        NUMBER.pack_into(self._disk.control, HOLDER, os.getpid())

    def _number(self, at: int) -> int:
        value: int = NUMBER.unpack_from(self._disk.control, at)[0]
        return value
