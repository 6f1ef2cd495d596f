"""Room for the log: the next segment, made ahead of its use, and what is refused when there is none (W7)."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
from contextlib import suppress
from typing import Final

from leasemill.errors import Unavailable
from leasemill.store.wal.control import FULL
from leasemill.store.wal.disk import Disk
from leasemill.store.wal.format import SEAL_BYTES, SEGMENT_HEADER_BYTES, segment_header
from leasemill.store.wal.manifest import Segment

LOGGER: Final = logging.getLogger("leasemill.wal")
SPARE: Final = "spare"
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
SPARE_RETRY_S: Final = 1.0
RESERVED_SHARE: Final = 4
BYTES_TO_FINISH: Final = 512
_spares_made: Final = itertools.count(1)


class Space:
    """`page` is the control page, where processes share whether the disk is full."""

    def __init__(self, disk: Disk, page: memoryview, segment_bytes: int) -> None:
        self._disk = disk
        self._page = page
        self.segment_bytes = segment_bytes
        self._spare_tried_at = -SPARE_RETRY_S

    def write_segment(self, segment: Segment, frame_bytes: int = 0) -> None:
        """Write a segment's file, not named yet, with room for a frame of this size. Made from the spare if there is
        one; that is renamed first, since others may replace it at any time."""
        made, header = f"{segment.name}.new", segment_header(segment.first)
        needed = SEGMENT_HEADER_BYTES + frame_bytes + SEAL_BYTES
        with suppress(FileNotFoundError):
            self._disk.rename(SPARE, made)
        try:
            file = self._disk.open(made)
        except FileNotFoundError:
            file = self._disk.create(made, max(self.segment_bytes, needed), header)
        else:
            if file.size() < needed:
                file.close()
                file = self._disk.create(made, max(self.segment_bytes, needed), header)
            else:
                file.write(0, header)
                file.sync()
        file.close()

    def prepare_spare(self) -> None:
        """Make the next segment ahead of its use. Needs no lock, and other threads may do it too."""
        self._spare_tried_at = time.monotonic()
        is_full = False
        try:
            if SPARE not in self._disk.names():
                made = f"{SPARE}-{os.getpid()}-{next(_spares_made)}.new"
                self._disk.create(made, self.segment_bytes).close()
                self._disk.rename(made, SPARE)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            is_full = True
        with suppress(TypeError, ValueError):  # closed meanwhile
            if is_full and not self._page[FULL]:
                LOGGER.warning("no room for another segment in %s: enqueue is refused until there is", self._disk.where)
            self._page[FULL] = is_full

    def require_room_to_grow(self) -> None:
        """What adds jobs is refused while there is no room for another segment."""
        if self._is_still_full():
            raise self.no_space()

    def has_room_to_finish(self, bytes_left: int, jobs: int) -> bool:
        """No job is given out when what is left of the segment is only enough to end those that then run."""
        reserve = max(self.segment_bytes // RESERVED_SHARE, jobs * BYTES_TO_FINISH)
        return bytes_left >= reserve or not self._is_still_full()

    def _is_still_full(self) -> bool:
        if self._page[FULL] and time.monotonic() - self._spare_tried_at >= SPARE_RETRY_S:
            self.prepare_spare()
        return bool(self._page[FULL])

    def no_space(self) -> Unavailable:
        needed_mb = -(-self.segment_bytes // 1_000_000)
        return Unavailable(
            f"no space left for {self._disk.where}: free {needed_mb} MB or more; then purging finished jobs and a "
            "snapshot (leasemill wal snapshot) free more; running jobs can still finish"
        )
