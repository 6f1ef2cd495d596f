"""The control page: a few numbers that all processes of a boot share in memory, in the lock file.

Written under the lock, except the mark of a failed sync. It holds nothing that the log does not, and is never synced:
it is written afresh after a boot. It exists because a process that takes the lock has to know, without reading a file,
what others did since it last had it: where the log ends, whether the manifest was replaced, whether a sync failed. The
log reads and writes the numbers directly, by the indexes below.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from leasemill.store.file.disk import Disk

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
"""The `Control` that last had the lock and knew when it released it that the log ends at the tail; 0 while the lock is
held, and after a holder that died or failed. Earlier versions write it without knowing that."""
ACQUIRE_DIGEST: Final = 10
"""The digest of the list of acquire queues in the manifest: a process that read another list reads it again."""
PULSE: Final = 11
"""Three numbers, of jobs that were ever enqueued, were ever claimed and are held, and the position they hold at."""
PULSE_AT: Final = PULSE + 3
LOOKED: Final = 15
"""The same `Control` as LAST, written before it: then nothing is behind the tail. Earlier versions do not write it."""

FOLDER_BYTES: Final = slice(4080, 4096)
"""Drawn by the first process that opens a folder: a copy has the same, a new folder at the same path has another. It
need not outlive a boot: no process does. Earlier versions do not write it."""


class Control:
    """`identity` is that of the boot and the lock file: a page of another is not current. It is current when the first
    bytes of the page (`boot`) are this identity's `digest`: then the log's tail has been looked at in this boot."""

    __slots__ = ("boot", "digest", "folder", "me", "page", "process_id")

    def __init__(self, disk: Disk, identity: str) -> None:
        self.boot = disk.control[:BOOT_BYTES]
        self.folder = disk.control[FOLDER_BYTES]
        self.page = disk.control.cast("Q")
        self.digest = hashlib.blake2b(identity.encode(), digest_size=BOOT_BYTES).digest()
        self.me = int.from_bytes(os.urandom(8), "little") | 1
        self.process_id = os.getpid()

    def close(self) -> None:
        self.boot.release()
        self.folder.release()
        self.page.release()

    @property
    def is_current(self) -> bool:
        return self.boot == self.digest

    def name_folder(self) -> bytes:
        """Return the folder's identity, and draw it if it has none yet. Needs the lock."""
        if self.folder == bytes(len(self.folder)):
            self.folder[:] = os.urandom(len(self.folder))
        return bytes(self.folder)

    def publish_pulse(self, seq: int, fence: int, leased: int, position: int) -> None:
        """Publish numbers for processes that do not take the lock. PULSE_AT is cleared before they change and set
        after: a reader that finds one position before and after it has read them knows that they belong together."""
        page = self.page
        page[PULSE_AT] = 0
        page[PULSE], page[PULSE + 1], page[PULSE + 2] = seq, fence, leased
        page[PULSE_AT] = position

    def pulse_behind(self, position: int) -> tuple[int, int, int] | None:
        """Return the numbers published last, if they were behind this position. It needs no lock."""
        page = self.page
        published_at = page[PULSE_AT]
        seq, fence, leased = page[PULSE], page[PULSE + 1], page[PULSE + 2]
        return (seq, fence, leased) if position < published_at == page[PULSE_AT] else None

    def begin(self, generation: int, segment: int, tail: int) -> None:
        """Make the page current."""
        page = self.page
        page[GENERATION], page[SEGMENT], page[TAIL] = generation, segment, tail
        page[POISONED] = page[FOLDER_UNSYNCED] = page[FULL] = page[PULSE_AT] = 0
        self.boot[:] = self.digest
