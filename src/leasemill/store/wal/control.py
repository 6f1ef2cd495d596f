"""The control page: a few numbers that all processes of a boot share in memory, in the lock file.

Written under the lock, except the mark of a failed sync. It holds nothing that the log does not: it is written afresh
after a boot. The log reads and writes the numbers directly, by the indexes below.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from leasemill.store.wal.disk import Disk

BOOT_BYTES: Final = 16
GENERATION: Final = 2
"""Of the manifest: a process that read another one begins again."""
TAIL: Final = 3
"""Where the log ended when a process last appended: a frame may follow whose writer died before it recorded that."""
HOLDER: Final = 4
"""The process that holds the lock."""
POISONED: Final = 5
"""A sync failed: nothing that was not known to be synced may be acknowledged until recovery."""
SEGMENT: Final = 6
"""Where the last segment begins."""
FOLDER_UNSYNCED: Final = 7
"""The manifest was replaced, or is being replaced: a crash of the machine could undo that."""
FULL: Final = 8
"""There was no room for another segment when a process last looked."""
LAST: Final = 9
"""The `Control` that last had the lock and recorded all it wrote; 0 while the lock is held."""
ACQUIRE_DIGEST: Final = 10
"""Of the list of acquire queues in the manifest: a process that read another list reads it again."""


class Control:
    """`identity` is that of the boot and the lock file: a page of another is not current. It is current when the first
    bytes of the page (`boot`) are this identity's `digest`: then the log's tail has been looked at in this boot."""

    __slots__ = ("boot", "digest", "me", "page")

    def __init__(self, disk: Disk, identity: str) -> None:
        self.boot = disk.control[:BOOT_BYTES]
        self.page = disk.control.cast("Q")
        self.digest = hashlib.blake2b(identity.encode(), digest_size=BOOT_BYTES).digest()
        self.me = int.from_bytes(os.urandom(8), "little") | 1

    def close(self) -> None:
        self.boot.release()
        self.page.release()

    @property
    def is_current(self) -> bool:
        return self.boot == self.digest

    def begin(self, generation: int, segment: int, tail: int) -> None:
        """The page is current from now on."""
        page = self.page
        page[GENERATION], page[SEGMENT], page[TAIL] = generation, segment, tail
        page[POISONED] = page[FOLDER_UNSYNCED] = page[FULL] = 0
        self.boot[:] = self.digest
