"""Room for the log: the next segment, made ahead of its use, the reserves, and what is refused without room (W7).

Two files hold blocks that nothing else can take. `reserve` is given up for reports of running jobs and for manifests,
`reserve-snapshot` for a snapshot; each is made again when there is room. While one of them is not whole, what adds jobs
is refused. What must never happen here: a reserve that is given up for what adds jobs or gives them out.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from leasemill.errors import Unavailable
from leasemill.store.base import DiskRoom
from leasemill.store.file.control import FULL
from leasemill.store.file.disk import Disk
from leasemill.store.file.format import SEAL_BYTES, SEGMENT_HEADER_BYTES, segment_header
from leasemill.store.file.manifest import Segment

LOGGER: Final = logging.getLogger("leasemill.wal")
SPARE: Final = "spare"
UNFINISHED_SPARE: Final = re.compile(rf"{SPARE}-([1-9][0-9]*)-[0-9]+\.new")
RESERVE: Final = "reserve"
SNAPSHOT_RESERVE: Final = "reserve-snapshot"
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
SPARE_RETRY_S: Final = 1.0
CLAIMS_SHARE: Final = 4
BYTES_TO_FINISH: Final = 512
BLOCK_BYTES: Final = 4096
MANIFESTS_SHARE: Final = 16
LEAST_FOR_MANIFESTS: Final = 4 * BLOCK_BYTES
LARGEST_SNAPSHOT_RESERVE: Final = 256 * 1024 * 1024
_spares_made: Final = itertools.count(1)
ResultT = TypeVar("ResultT")
Reserves: TypeAlias = tuple[str, ...]
NO_RESERVE: Final[Reserves] = ()
FOR_REPORTS: Final[Reserves] = (RESERVE,)
FOR_SNAPSHOTS: Final[Reserves] = (SNAPSHOT_RESERVE,)
ALL_RESERVES: Final[Reserves] = (RESERVE, SNAPSHOT_RESERVE)


class Space:
    """`page` is the control page, where processes share whether the disk is full. `segment_bytes` is the size of new
    segments, `report_bytes` what is reserved for reports, `snapshot_bytes` for a snapshot."""

    def __init__(self, disk: Disk, page: memoryview, segment_bytes: int) -> None:
        self._disk = disk
        self._page = page
        self.segment_bytes = segment_bytes
        self.report_bytes = segment_bytes
        self.snapshot_bytes = 0
        self._spare_tried_at = -SPARE_RETRY_S

    def measure(self, segment_bytes: int, covered_bytes: int) -> None:
        """How much to reserve: a segment like the last one or the spare of the folder, since a command may not know how
        large its processes make them, and what a snapshot would replace. A larger snapshot would free nothing."""
        self.report_bytes = min(self.segment_bytes, max(segment_bytes, self._disk.size(SPARE)))
        self.snapshot_bytes = min(covered_bytes, LARGEST_SNAPSHOT_RESERVE)

    # Segments

    def write_segment(self, segment: Segment, frame_bytes: int, reserves: Reserves) -> None:
        """Write a segment's file, not named yet, with room for a frame of this size. Made from the spare if there is
        one; that is renamed first, since others may replace it at any time."""
        # A spare is a file of zeros, allocated and synced, so that using it costs one small write while the folder is
        # locked. Another process may have made it smaller than this frame needs: then the file is made anew.
        made, header = f"{segment.name}.new", segment_header(segment.first)
        needed = SEGMENT_HEADER_BYTES + frame_bytes + SEAL_BYTES
        with suppress(FileNotFoundError):
            self._disk.rename(SPARE, made)
        try:
            file = self._disk.open(made)
        except FileNotFoundError:
            pass
        else:
            try:
                if file.size() >= needed:
                    file.write(0, header)
                    file.sync()
                    return
            finally:
                file.close()
        try:
            self._disk.create(made, max(self.segment_bytes, needed), header).close()
        except OSError as error:
            if error.errno not in NO_SPACE or not reserves:
                raise
            self._write_from_reserve(made, header, needed, reserves)

    def _write_from_reserve(self, made: str, header: bytes, needed: int, reserves: Reserves) -> None:
        """As large as reports were promised; if there is less left, smaller, so that all of it is used. For a snapshot
        a small one will do: the snapshot then makes room for more. What cannot fit at all leaves the reserves alone."""
        least = max(needed, min(self.report_bytes, BLOCK_BYTES))
        if least > self._disk.free_bytes + sum(map(self._disk.size, reserves)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = max(least, self._manifest_bytes if reserves == ALL_RESERVES else self.report_bytes)
        while True:
            try:
                self.from_reserve(lambda size=size: self._disk.create(made, size, header).close(), size, reserves)  # type: ignore[misc]
            except OSError as error:
                if error.errno not in NO_SPACE or size == least:
                    raise
                size = max(least, size // 2)
            else:
                return

    def prepare_spare(self) -> None:
        """Make the next segment ahead of its use, and the reserves whole. Needs no lock, and other threads may do it
        too. The reserves come first: without a spare the log goes on in them."""
        self._spare_tried_at = time.monotonic()
        remove_left_spares(self._disk)
        is_full = not self._has_reserves()
        try:
            if not is_full and SPARE not in self._disk.names():
                made = f"{SPARE}-{os.getpid()}-{next(_spares_made)}.new"
                self._disk.create(made, self.segment_bytes).close()
                with suppress(FileNotFoundError):  # removed by a process that does not see this one
                    self._disk.rename(made, SPARE)
            is_full = is_full or self._disk.free_bytes < LEAST_FOR_MANIFESTS
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            is_full = True
        self._mark(is_full=is_full)

    # The reserves

    @property
    def _manifest_bytes(self) -> int:
        return max(self.report_bytes // MANIFESTS_SHARE, LEAST_FOR_MANIFESTS)

    def keep_reserves(self) -> None:
        """Make the reserves whole when a process opens the folder. A full disk may still have no room for a spare."""
        if not self._has_reserves():
            self._mark(is_full=True)

    def _has_reserves(self) -> bool:
        """Make the reserves whole if there is room; returns whether they are."""
        try:
            self._disk.allocate(RESERVE, self.report_bytes + self._manifest_bytes)
            self._disk.allocate(SNAPSHOT_RESERVE, self.snapshot_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True

    def take_back(self, name: str, size: int) -> None:
        """Reserve again what was given up for a file that was removed, unless other programs have taken it."""
        try:
            self._disk.allocate(name, size)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def shrink_snapshot_reserve(self) -> None:
        """Shrink the reserve after a snapshot, since the next one replaces less."""
        if self._disk.size(SNAPSHOT_RESERVE) > self.snapshot_bytes:
            self._disk.shrink(SNAPSHOT_RESERVE, self.snapshot_bytes)

    def from_reserve(self, write: Callable[[], ResultT], needed_bytes: int, reserves: Reserves) -> ResultT:
        """Call `write`; while the disk is full, give up as much of the reserves as it needs and call it again.

        The blocks that a reserve gives up are anybody's for a moment, and other programs may take them first. So it is
        repeated until nothing is left, and `write` must do the same whenever it is called."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in NO_SPACE or not any(self._give_up(name, needed_bytes) for name in reserves):
                    raise

    def _give_up(self, name: str, needed_bytes: int) -> bool:
        left = self._disk.size(name)
        if left == 0:
            return False
        self._mark(is_full=True)
        blocks = max(0, left - needed_bytes) // BLOCK_BYTES
        self._disk.shrink(name, blocks * BLOCK_BYTES)
        return True

    def give_up_block(self) -> bool:
        """Free a block for a worker's record, which is no part of the log; returns whether there was one to spare."""
        if self._disk.size(RESERVE) - BLOCK_BYTES < self.report_bytes:
            return False
        return self._give_up(RESERVE, BLOCK_BYTES)

    # What is refused

    def _mark(self, *, is_full: bool) -> None:
        with suppress(TypeError, ValueError):  # closed meanwhile
            if is_full and not self._page[FULL]:
                LOGGER.warning("no room for another segment in %s: enqueue is refused until there is", self._disk.where)
            self._page[FULL] = is_full

    def require_room_to_grow(self) -> None:
        """Refuse a call that adds jobs while there is no room for another segment, or a reserve is not whole."""
        if self._is_still_full():
            raise self.no_space()

    def has_room_to_finish(self, bytes_left: int, jobs: int) -> bool:
        """No job is given out when what is left of the segment is only enough to end those that then run, or when
        reports have begun to use the reserve."""
        wanted = max(self.report_bytes // CLAIMS_SHARE, jobs * BYTES_TO_FINISH)
        is_reserved = self._disk.size(RESERVE) >= self.report_bytes
        return (bytes_left >= wanted and is_reserved) or not self._is_still_full()

    def _is_still_full(self) -> bool:
        if self._page[FULL] and time.monotonic() - self._spare_tried_at >= SPARE_RETRY_S:
            self.prepare_spare()
        return bool(self._page[FULL])

    def room(self) -> DiskRoom:
        is_full = self._is_still_full()
        held = self._disk.size(RESERVE), self._disk.size(SNAPSHOT_RESERVE)
        is_whole = held[0] >= self.report_bytes + self._manifest_bytes and held[1] >= self.snapshot_bytes
        return DiskRoom(is_full, self._disk.free_bytes, self._needed_bytes() if is_full else 0, sum(held), is_whole)

    def _needed_bytes(self) -> int:
        """Return how much has to be freed until jobs are accepted: for the reserves, a spare and a manifest."""
        missing = LEAST_FOR_MANIFESTS
        missing += max(0, self.report_bytes + self._manifest_bytes - self._disk.size(RESERVE))
        missing += max(0, self.snapshot_bytes - self._disk.size(SNAPSHOT_RESERVE))
        if self._disk.size(SPARE) == 0:
            missing += self.segment_bytes
        return max(BLOCK_BYTES, missing - self._disk.free_bytes)

    def no_space(self) -> Unavailable:
        return Unavailable(
            f"no space left for {self._disk.where}: free {_megabytes(self._needed_bytes())} MB or more, or "
            "purge finished jobs and then take a snapshot (leasemill wal snapshot); running jobs can still finish"
        )

    def reserve_is_used_up(self) -> Unavailable:
        return Unavailable(
            f"no space left for {self._disk.where}, and reports of running jobs have used up the reserve: free "
            f"{_megabytes(self._needed_bytes())} MB or more on its file system, or purge finished jobs and take a "
            "snapshot (leasemill wal snapshot), then repeat the call; nothing is lost"
        )

    def no_room_for_snapshot(self) -> Unavailable:
        return Unavailable(
            f"no space left for a snapshot of {self._disk.where}: it takes more than the "
            f"{_megabytes(self.snapshot_bytes)} MB that it would free and that are reserved for it; nothing was "
            f"changed; purge finished jobs, or free {_megabytes(self.snapshot_bytes)} MB or more on its file system, "
            "then repeat the call"
        )


def remove_left_spares(disk: Disk) -> None:
    """Remove what processes left that died while they made a spare: on a full disk it only takes room. A process of
    another container may seem to have died; it then goes on without a spare."""
    for name in disk.names():
        unfinished = UNFINISHED_SPARE.fullmatch(name)
        if unfinished is not None and not _is_running(int(unfinished[1])):
            disk.remove(name)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _megabytes(count: int) -> int:
    return -(-count // 1_000_000)
