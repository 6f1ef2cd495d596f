"""Where a process is in the log, and reading on from there. Writes nothing.

Rules W2 and W8 of docs/log-format.md. Positions are bytes from the log's beginning, over all segments. What must never
happen here: a frame read past damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leasemill.errors import Broken, Unavailable
from leasemill.store.file.control import TAIL, Control
from leasemill.store.file.disk import Disk, File
from leasemill.store.file.format import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Cut,
    Frame,
    Kind,
    check_segment_header,
    read_frame,
)
from leasemill.store.file.manifest import Manifest, Segment, Snapshot, read_manifest

LONGEST_READ_BYTES: Final = 4 * 1024 * 1024


class Superseded(Exception):
    """What this process has read is not the log any more: begin again from the manifest."""


class RoomGone(Superseded):
    """There is no room for what was decided, and some of it may not use the reserve: decide again, on a full disk."""


class Reader:
    """`position` is how far this process has read, `segment` the one it is in, `file` that segment, opened. Everything
    before `synced_to` is known to be on disk."""

    manifest: Manifest
    segment: Segment

    def __init__(self, disk: Disk, control: Control) -> None:
        self.disk = disk
        self.control = control
        self.page = control.page
        self.file: File | None = None
        self.file_bytes = 0
        self.position = 0
        self.synced_to = 0

    def close(self) -> None:
        self._close_file()
        self.control.close()
        self.disk.close()

    def _close_file(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    @property
    def sealed_bytes(self) -> int:
        """The bytes that a snapshot could cover and the latest one does not."""
        snapshot = self.manifest.snapshot
        return self.manifest.last.first - (0 if snapshot is None else snapshot.position)

    @property
    def offset(self) -> int:
        """The offset in the file of the frame at `position`."""
        return SEGMENT_HEADER_BYTES + self.position - self.segment.first

    @property
    def bytes_left(self) -> int:
        """The bytes in the segment behind `position`."""
        if self.segment.end is not None:
            return self.segment.end - self.position
        return max(0, self.file_bytes - self.offset)

    # Going to a position

    def read_manifest(self) -> Manifest:
        manifest = read_manifest(self.disk)
        if manifest is None:
            raise Unavailable(f"the log in {self.disk.where} was removed while it was in use")
        return manifest

    def refresh(self) -> None:
        """Read the manifest again: another process may have replaced it."""
        self.manifest = self.read_manifest()

    def begin(self) -> Snapshot | None:
        """Go to where reading starts: behind the returned snapshot, or at the very beginning."""
        self.refresh()
        snapshot = self.manifest.snapshot
        self.go_to(self.manifest.segments[0].first if snapshot is None else snapshot.position)
        return snapshot

    def go_to(self, position: int) -> None:
        for segment in reversed(self.manifest.segments):
            if segment.first <= position and (segment.end is None or position < segment.end):
                break
        else:
            raise Superseded  # W8: the segment is gone; a snapshot stands for it
        if self.file is None or segment.name != self.segment.name:
            file = self._open(segment)
            self._close_file()
            self.file, self.file_bytes = file, file.size()
        self.segment = segment
        self.position = position
        self.synced_to = max(self.synced_to, self.manifest.last.first)

    def _open(self, segment: Segment) -> File:
        try:
            file = self.disk.open(segment.name)
        except FileNotFoundError:
            if self.read_manifest() != self.manifest:
                raise Superseded from None
            raise Broken(
                f"{segment.name} is missing from {self.disk.where}; restore the folder from a backup"
            ) from None
        check_segment_header(segment.name, file.read(0, SEGMENT_HEADER_BYTES), segment.first)
        return file

    # Reading on

    def read_new(self) -> Iterator[Frame]:
        """Yield the whole frames behind `position`, which moves along (W2)."""
        length = self._bytes_behind()
        while True:
            if self.segment.end is not None and self.position >= self.segment.end and not self._enter_next():
                return
            content, first = self.rest(length), self.position
            found = read_frame(content, 0, first)
            while isinstance(found, Frame) and found.kind is Kind.EVENTS:
                self.synced_to = max(self.synced_to, found.synced_to)
                self.position = found.end
                yield found
                found = read_frame(content, found.end - first, found.end)
            if isinstance(found, Frame):
                if not self._enter_next(found.end):
                    return
                length = self._bytes_behind()
            elif found is Cut.SHORT and self.bytes_left > len(content) - (self.position - first):
                length = self._bytes_behind() if self.position > first else length * 4
            elif self.position == self.segment.end:
                length = self._bytes_behind()  # W5: a segment that a recovery cut short has no seal
            else:
                self._at_end(content[self.position - first :], found)
                return

    def rest(self, length: int | None = None) -> bytes:
        """Read what the segment holds behind `position`, or the first `length` bytes of it."""
        assert self.file is not None
        left = self.bytes_left
        return self.file.read(self.offset, left if length is None else min(length, left))

    def _bytes_behind(self) -> int:
        """Return how much to read at once: as much as others are known to have appended, within bounds."""
        if not self.control.is_current:
            return LONGEST_READ_BYTES  # nobody in this boot knows yet
        behind = self.page[TAIL] - self.position
        return FRAME_HEADER_BYTES + max(0, min(behind, LONGEST_READ_BYTES))

    def _enter_next(self, position: int | None = None) -> bool:
        """Go to the next segment, behind the end of this one. False if it is not there yet."""
        position = self.position if position is None else position
        manifest = self.read_manifest()
        if manifest.generation != self.manifest.generation:
            raise Superseded
        self.manifest = manifest
        if manifest.last.first < position and not self._make_next(position):
            return False
        self.go_to(position)
        return True

    def _make_next(self, _position: int) -> bool:
        """Do nothing: the next segment has no name yet, its maker is at work or has died, and a reader waits."""
        return False

    def _at_end(self, rest: bytes, found: Cut) -> None:
        """Do nothing: no whole frame follows, or one is being written, and a reader stops here."""
