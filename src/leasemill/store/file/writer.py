"""Changing the files of a log: syncs, the manifest, new segments. Needs the folder's lock.

Rules W5, W6 and W7. What must never happen here: a file that counts before it is on disk.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from leasemill.errors import Broken, Unavailable
from leasemill.kernel.state import PLAIN_FORMAT
from leasemill.store.file.clock import Machine, anchored
from leasemill.store.file.control import (
    ACQUIRE_DIGEST,
    FOLDER_UNSYNCED,
    FULL,
    GENERATION,
    POISONED,
    SEGMENT,
    TAIL,
    Control,
)
from leasemill.store.file.disk import Disk
from leasemill.store.file.format import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from leasemill.store.file.manifest import (
    TO_BE_SET,
    BootClock,
    Manifest,
    Segment,
    adopt_manifest,
    manifest_content,
    segment_name,
    write_manifest,
)
from leasemill.store.file.reader import Reader, RoomGone
from leasemill.store.file.space import ALL_RESERVES, FOR_REPORTS, NO_RESERVE, NO_SPACE, Reserves, Space

LOGGER: Final = logging.getLogger("leasemill.wal")


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
        """Create a log, in an empty folder or in one whose creation was interrupted."""
        segment = Segment(segment_name(0, 1), 0)
        self._refuse_lost_manifest(segment.name)
        manifest = Manifest(PLAIN_FORMAT, 1, anchored(self._machine, 0), (segment,), acquire_queues=())
        write_manifest(self.disk, manifest_content(manifest))
        self.space.write_segment(segment, 0, NO_RESERVE)
        self.name_segment(manifest)
        LOGGER.info("%s is a new store", Path(self.disk.where).absolute())
        return manifest

    def _refuse_lost_manifest(self, first_name: str) -> None:
        """Refuse a folder with a frame or another segment: it had a manifest, and a new log would overwrite it."""
        for name in self.disk.names():
            if not name.startswith(("segment-", "snapshot-0")) or name.endswith(".new"):
                continue
            if name == first_name:
                file = self.disk.open(name)
                try:
                    if not file.read(SEGMENT_HEADER_BYTES, FRAME_HEADER_BYTES).strip(b"\0"):
                        continue
                finally:
                    file.close()
            raise Broken(
                f"the manifest of {self.disk.where} is missing, and {name} is there; restore the folder from a backup"
            )

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
        """W6: should this process die in between, the next one syncs the folder before it writes anything. W7: it is
        small, and a start, a raised format or a snapshot needs it: it may use the reserve."""
        content = manifest_content(manifest)
        self.space.from_reserve(lambda: write_manifest(self.disk, content), len(content), ALL_RESERVES)
        self.page[ACQUIRE_DIGEST] = manifest.acquire_digest
        self.page[FOLDER_UNSYNCED] = 1
        adopt_manifest(self.disk)
        self.page[FOLDER_UNSYNCED] = 0
        self.manifest = manifest

    def anchor(self, latest_at: int) -> None:
        """Record this boot's clock, under the lock, when the leases of an earlier boot have been ended (W10)."""
        clock = anchored(self._machine, latest_at)
        self.replace_manifest(replace(self.read_manifest(), clock=clock))

    def forget_clock(self) -> None:
        """W17: under the lock; whoever decides something next sets the clock first. The generation rises, so that every
        process reads the manifest again."""
        manifest = self.read_manifest()
        clock = BootClock(TO_BE_SET + self.boot_id, 0)
        self.replace_manifest(replace(manifest, generation=manifest.generation + 1, clock=clock))
        self.page[GENERATION] = manifest.generation + 1

    # New segments

    def write_ahead(self, first: int, needed_bytes: int = 0, reserves: Reserves = FOR_REPORTS) -> Manifest:
        """Write a segment that begins at `first` and a manifest with it; neither counts yet. Returns the latter."""
        manifest = self.read_manifest()
        last = manifest.last
        segment = Segment(segment_name(first, manifest.generation), first)
        segments = (*manifest.segments[:-1], Segment(last.name, last.first, first), segment)
        following = replace(manifest, segments=segments)
        content = manifest_content(following)
        try:
            self.space.from_reserve(lambda: write_manifest(self.disk, content), len(content), reserves)
            self.space.write_segment(segment, needed_bytes, reserves)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.page[FULL] = 1
            if reserves == NO_RESERVE:
                raise RoomGone from error
            raise self.space.reserve_is_used_up() from error
        return following

    def measure_room(self) -> None:
        """Compute what the reserves have to hold, by the folder's files as they are now."""
        manifest = self.manifest
        snapshot, last_bytes = manifest.snapshot, self.disk.size(manifest.last.name)
        since = manifest.last.first - (0 if snapshot is None else snapshot.position)
        earlier_bytes = 0 if snapshot is None else self.disk.size(snapshot.name)
        self.space.measure(last_bytes, earlier_bytes + since + last_bytes)

    def name_segment(self, manifest: Manifest) -> None:
        """Make the segment and the manifest that were written the ones that count."""
        segment = manifest.last
        self.page[FOLDER_UNSYNCED] = 1
        self.disk.rename(f"{segment.name}.new", segment.name)
        self.disk.sync_folder()
        adopt_manifest(self.disk)
        self.page[FOLDER_UNSYNCED] = 0
        self.manifest = manifest
        self.page[SEGMENT] = self.page[TAIL] = segment.first
