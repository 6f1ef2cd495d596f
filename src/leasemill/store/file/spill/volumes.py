"""Where the records of spilled jobs lie: in the snapshot a process was loaded from, and in scratch files of its own.

All of it may be lost with the process: the log has every job. A scratch file has no name, and the snapshot stays
readable although a later one has replaced it, for as long as it is open here. What must never happen here: a file
closed while one of its records is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from leasemill.store.file.disk import File

OFFSET_BITS: Final = 40
OFFSETS: Final = (1 << OFFSET_BITS) - 1
SCRATCH_BYTES: Final = 32 * 1024 * 1024
BLOCK_BYTES: Final = 64 * 1024
LEAST_SCRATCH: Final = 4
SPARSE_SHARE: Final = 4


class Volume:
    """A file and how many of its records are still wanted."""

    __slots__ = ("file", "is_scratch", "records", "size")

    def __init__(self, file: File, *, is_scratch: bool) -> None:
        self.file = file
        self.is_scratch = is_scratch
        self.records = 0
        self.size = 0


class Volumes:
    """The files by number. A record's location is one integer: its volume's number, then its offset in the file.

    The latest block that was read is kept: jobs are mostly read in the order in which they were written, and a system
    call for each would cost more than decoding it."""

    def __init__(self, make_scratch: Callable[[], File]) -> None:
        self._make_scratch = make_scratch
        self._volumes: dict[int, Volume] = {}
        self._next_number = 0
        self._current = -1
        self._block = b""
        self._block_at = -1

    def close(self) -> None:
        for volume in self._volumes.values():
            volume.file.close()
        self._volumes.clear()

    def take(self, file: File) -> int:
        """Records are read from this file from now on, which is closed when none is wanted any more. Returns the
        location of its first byte."""
        return self._add(Volume(file, is_scratch=False)) << OFFSET_BITS

    def _add(self, volume: Volume) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        self._volumes[number] = volume
        return number

    def write(self, records: Sequence[bytes]) -> list[int]:
        """Append the records; returns their locations. Raises OSError when there is no room: nothing was written."""
        volume = self._volumes.get(self._current)
        if volume is None or volume.size >= SCRATCH_BYTES:
            volume = Volume(self._make_scratch(), is_scratch=True)
            before, self._current = self._current, self._add(volume)
            self._close_unwanted(before)
        offset = volume.size
        volume.file.write(offset, b"".join(records))
        locations: list[int] = []
        for record in records:
            locations.append(self._current << OFFSET_BITS | offset)
            offset += len(record)
        volume.size = offset
        volume.records += len(records)
        self._block_at = -1
        return locations

    def close_unwanted(self) -> None:
        for number in list(self._volumes):
            self._close_unwanted(number)

    def keep(self, location: int, count: int) -> None:
        """Count so many more records of a file that was taken as wanted."""
        self._volumes[location >> OFFSET_BITS].records += count

    def free(self, location: int) -> None:
        """Count the record there as not wanted any more."""
        number = location >> OFFSET_BITS
        self._volumes[number].records -= 1
        if not self._volumes[number].records:
            self._close_unwanted(number)

    def _close_unwanted(self, number: int) -> None:
        volume = self._volumes.get(number)
        if volume is not None and not volume.records and number != self._current:
            volume.file.close()
            del self._volumes[number]

    def read(self, location: int, length: int) -> bytes:
        start = location - self._block_at
        if self._block_at < 0 or start < 0 or start + length > len(self._block):
            volume = self._volumes[location >> OFFSET_BITS]
            self._block = volume.file.read(location & OFFSETS, max(BLOCK_BYTES, length))
            self._block_at, start = location, 0
        return self._block[start : start + length]

    @staticmethod
    def holds(number: int, location: int) -> bool:
        return location >> OFFSET_BITS == number

    def sparse(self) -> int | None:
        """Return a scratch file with far fewer wanted records than the others: they should move, so that it can close.

        Each file has SCRATCH_BYTES at most, and a record is moved only out of a file with a quarter of the average, so
        the files take at most a few times what is wanted, and no record is moved often."""
        scratch = [number for number, volume in self._volumes.items() if volume.is_scratch]
        if len(scratch) < LEAST_SCRATCH:
            return None
        wanted = sum(self._volumes[number].records for number in scratch)
        sparsest = min(scratch, key=lambda number: (number == self._current, self._volumes[number].records))
        return sparsest if self._volumes[sparsest].records * len(scratch) * SPARSE_SHARE <= wanted else None
