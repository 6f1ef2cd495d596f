"""`python -m leasemill.store.file.build FOLDER`: take a snapshot, in a process of its own: no worker waits for it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from leasemill.store.file.clock import RealMachine
from leasemill.store.file.disk import RealDisk, unavailable
from leasemill.store.file.log import Log
from leasemill.store.file.manifest import Snapshot
from leasemill.store.file.snapshot import take_snapshot
from leasemill.store.operations import OnProgress, not_shown


def build(
    folder: Path, *, keep_segments: bool, seal_first: bool = False, on_progress: OnProgress = not_shown
) -> Snapshot | None:
    """Cover all sealed segments of a folder's log; with `seal_first`, all of it."""
    try:
        disk = RealDisk(folder, may_make=False)
    except OSError as error:
        raise unavailable(folder, error) from error
    log = Log(disk, RealMachine(), segment_bytes=16 * 1024 * 1024, lock_timeout_s=60.0, may_create=False)
    try:
        log.space.segment_bytes = log.space.report_bytes  # as the folder's processes make them
        return take_snapshot(
            disk, log, folder, keep_segments=keep_segments, seal_first=seal_first, on_progress=on_progress
        )
    except OSError as error:
        raise unavailable(folder, error) from error
    finally:
        log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep-segments", action="store_true")
    arguments = parser.parse_args()
    os.nice(10)
    build(arguments.folder, keep_segments=arguments.keep_segments)


if __name__ == "__main__":
    main()
