"""What a process does for its folder beside the calls: the next segment ahead of its use, and snapshots."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from leasemill.store.file.control import FULL
from leasemill.store.file.format import SEGMENT_HEADER_BYTES
from leasemill.store.file.log import Log
from leasemill.store.file.manifest import Segment
from leasemill.store.file.options import FileOptions
from leasemill.store.file.space import Space

LOGGER: Final = logging.getLogger("leasemill.wal")
SNAPSHOT_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0
"""After snapshots that failed: on a full disk the next ones may have no room either, and each reads all jobs."""


class FolderMaintenance:
    """`look` is due when the log is in another segment than `segment` or has reached `due_at`, and on a full disk."""

    def __init__(self, path: Path, options: FileOptions) -> None:
        self._path = path
        self._options = options
        self.segment: Segment | None = None
        self.due_at: float = 0
        self._spare_made_for: str | None = None
        self._builder: subprocess.Popen[bytes] | None = None
        self._build_again_at_s = 0.0
        self._pause_s = SNAPSHOT_PAUSE_S

    def reset(self) -> None:
        """In a forked child: the builder is the parent's."""
        self._builder = None

    def look(self, log: Log, *, may_snapshot: bool) -> None:
        is_other = self.segment is None or log.segment.name != self.segment.name
        self.segment, self.due_at = log.segment, math.inf
        if not self._options.does_maintenance:
            return
        if is_other:
            _keep_reserves(log)
        half_left = log.segment.first + log.file_bytes - SEGMENT_HEADER_BYTES - log.space.segment_bytes // 2
        if log.position <= half_left:
            self.due_at = half_left + 1
        elif self._spare_made_for != log.segment.name:
            self._spare_made_for = log.segment.name
            threading.Thread(target=_prepare_spare, args=(log.space,), daemon=True).start()
        if self._is_snapshot_due(log):
            self.due_at = 0  # until it covers them
            if may_snapshot and self._may_build(log):
                self._build()

    def _may_build(self, log: Log) -> bool:
        """Whether to build: one at a time, not too often, and only if no other process has built one meanwhile."""
        is_building = self._builder is not None and self._builder.poll() is None
        if is_building or time.monotonic() < self._build_again_at_s:
            return False
        log.refresh()
        return self._is_snapshot_due(log)

    def _is_snapshot_due(self, log: Log) -> bool:
        """On a full disk as soon as there is anything to cover: on a small one the log never gets as long as a snapshot
        waits for, and what retention has forgotten would take its room for good."""
        frees_room = log.page[FULL] and not self._options.keep_segments
        return log.sealed_bytes >= (1 if frees_room else self._options.snapshot_bytes)

    def _build(self) -> None:
        has_failed = self._builder is not None and self._builder.returncode != 0
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if has_failed else SNAPSHOT_PAUSE_S
        self._build_again_at_s = time.monotonic() + self._pause_s
        self._builder = subprocess.Popen(
            [sys.executable, "-m", "leasemill.store.file.build", str(self._path.resolve())]
            + (["--keep-segments"] if self._options.keep_segments else []),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # Waited for even when the store is closed meanwhile: no ended process is left unclaimed.
        threading.Thread(target=_report_builder, args=(self._builder, self._path), daemon=True).start()


def _keep_reserves(log: Log) -> None:
    """Make the reserves before jobs fill the segment, so that a snapshot can cover it on a full disk (W7)."""
    try:
        log.measure_room()
        log.space.keep_reserves()
    except OSError:
        LOGGER.warning("no room could be reserved on the disk; it is tried again later", exc_info=True)


def _prepare_spare(space: Space) -> None:
    try:
        space.prepare_spare()
    except (OSError, ValueError):
        LOGGER.warning("the next segment could not be prepared; it is made when it is needed", exc_info=True)


def _report_builder(builder: subprocess.Popen[bytes], path: Path) -> None:
    """Wait for a snapshot's builder; one that failed is followed by another, which removes what it left."""
    _, errors = builder.communicate()
    if builder.returncode:
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        LOGGER.warning(
            "the snapshot of %s failed (exit code %d: %s); it is retried",
            path,
            builder.returncode,
            last_line or "no message",
        )
