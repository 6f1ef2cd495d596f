"""Changing the files of a log: syncs, the manifest, new segments. Needs the folder's lock.

Rules W5, W6 and W7. What must never happen here: a file that counts before it is on disk.
"""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.errors import Unavailable
from leasemill.kernel.state import PLAIN_FORMAT
from leasemill.store.wal.clock import Machine, anchored
from leasemill.store.wal.control import (
    ACQUIRE_DIGEST,
    FOLDER_UNSYNCED,
    FULL,
    GENERATION,
    POISONED,
    SEGMENT,
    TAIL,
    Control,
)
from leasemill.store.wal.disk import Disk
from leasemill.store.wal.manifest import BootClock, Manifest, Segment, adopt_manifest, segment_name, write_manifest
from leasemill.store.wal.reader import Reader
from leasemill.store.wal.space import NO_SPACE, Space


class Writer(Reader):
    """A reader that may also change what it reads. `knows_tail`: it has the lock, and the log ends at the tail that is
    on the control page: it has looked, or whoever had the lock before it knew."""

    def __init__(self, disk: Disk, machine: Machine, segment_bytes: int) -> None:
        self.boot_id = machine.boot_id()
        super().__init__(disk, Control(disk, f"{self.boot_id} {disk.identity}"))
        self.knows_tail = False
        self.space = Space(disk, self.page, segment_bytes)
        self._machine = machine

    def create(self) -> Manifest:
        """A new log, in an empty folder."""
        segment = Segment(segment_name(0, 1), 0)
        manifest = Manifest(PLAIN_FORMAT, 1, anchored(self._machine, 0), (segment,), acquire_queues=())
        write_manifest(self.disk, manifest)
        self.space.write_segment(segment)
        self.name_segment(manifest)
        return manifest

    def sync_file(self) -> None:
        assert self.file is not None
        try:
            self.file.sync()
        except OSError as error:
            raise self.poison(error) from error

    def poison(self, error: OSError) -> Unavailable:
        self.page[POISONED] = 1  # W5: for every process, not only this one
        return Unavailable(
            f"the disk under {self.disk.where} failed to sync ({error.strerror}); nothing since the last "
            "sync is acknowledged; check the disk, then repeat the call"
        )

    # The manifest

    def replace_manifest(self, manifest: Manifest) -> None:
        """W6: should this process die in between, the next one syncs the folder before it writes anything."""
        write_manifest(self.disk, manifest)
        self.page[ACQUIRE_DIGEST] = manifest.acquire_digest
        self.page[FOLDER_UNSYNCED] = 1
        adopt_manifest(self.disk)
        self.page[FOLDER_UNSYNCED] = 0
        self.manifest = manifest

    def anchor(self, latest_at: int) -> None:
        """W10: under the lock, when the leases of an earlier boot have been ended: this boot's clock."""
        clock = anchored(self._machine, latest_at)
        self.replace_manifest(replace(self.read_manifest(), clock=clock))

    def forget_clock(self) -> None:
        """W17: under the lock; whoever decides something next sets the clock first. The generation rises, so that every
        process reads the manifest again."""
        manifest = self.read_manifest()
        self.replace_manifest(replace(manifest, generation=manifest.generation + 1, clock=BootClock("", 0)))
        self.page[GENERATION] = manifest.generation + 1

    # New segments

    def write_ahead(self, first: int, needed_bytes: int = 0) -> Manifest:
        """The manifest with a segment that begins at `first`: both are written, and neither counts yet."""
        manifest = self.read_manifest()
        last = manifest.last
        segment = Segment(segment_name(first, manifest.generation), first)
        segments = (*manifest.segments[:-1], Segment(last.name, last.first, first), segment)
        following = replace(manifest, segments=segments)
        try:
            write_manifest(self.disk, following)
            self.space.write_segment(segment, needed_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.page[FULL] = 1
            raise self.space.no_space() from error
        return following

    def name_segment(self, manifest: Manifest) -> None:
        """Segment and manifest, as written, count from now on."""
        segment = manifest.last
        self.page[FOLDER_UNSYNCED] = 1
        self.disk.rename(f"{segment.name}.new", segment.name)
        self.disk.sync_folder()
        adopt_manifest(self.disk)
        self.page[FOLDER_UNSYNCED] = 0
        self.manifest = manifest
        self.page[SEGMENT] = self.page[TAIL] = segment.first
