"""A process's own copy of the state, and the log it is read from: opening, loading a snapshot, catching up.

A replica that may be ahead of the log is thrown away (`forget`). Decides nothing and appends nothing.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

from leasemill.errors import Broken, Unavailable
from leasemill.kernel.machine import apply_all
from leasemill.store.file.clock import Machine
from leasemill.store.file.disk import Disk, RealDisk
from leasemill.store.file.log import Log
from leasemill.store.file.manifest import Snapshot
from leasemill.store.file.options import FileOptions
from leasemill.store.file.reader import Superseded
from leasemill.store.file.snapshot import read_snapshot
from leasemill.store.file.spill.state import SpillingState
from leasemill.store.notifications import Ends


class Replica:
    """`state` is None until it is loaded; then it is the state at the log's position, whose latest event happened at
    `latest_at`. `is_settled`: leases that expired before this process first looked are on record (W15)."""

    def __init__(self, path: Path, options: FileOptions, machine: Machine, disk: Disk | None, ends: Ends) -> None:
        self._path = path
        self._options = options
        self._machine = machine
        self._given_disk = disk
        self._ends = ends
        self._folder: bytes | None = None
        self.log: Log | None = None
        self.state: SpillingState | None = None
        self.latest_at = 0
        self.is_settled = False

    # The log

    def open(self, *, may_create: bool) -> Log:
        disk = self._given_disk or RealDisk(self._path, may_make=may_create)
        log = Log(
            disk,
            self._machine,
            segment_bytes=self._options.segment_bytes,
            lock_timeout_s=self._options.lock_timeout_s,
            may_create=may_create,
        )
        if self._folder not in (None, log.folder):
            log.close()
            raise Unavailable(
                f"the folder {self._path} is another one than this process has used: that was removed or moved, and a "
                "new one is in its place. Put the old one back, or restart this process to use the new one; nothing "
                "was written to it"
            )
        self._folder, self.log = log.folder, log
        return log

    def opened_log(self) -> Log:
        return self.log or self.open(may_create=False)

    def close(self) -> None:
        self.drop_state()
        self.is_settled = False
        if self.log is not None:
            self.log.close()
            self.log = None

    def forget(self) -> None:
        """Forget the state, which may be ahead of the log. The next call opens a folder that was replaced again."""
        self.drop_state()
        self.is_settled = False
        if self.log is not None and self._given_disk is None and not self.log.disk.is_there:
            self.close()

    # The state

    def drop_state(self) -> None:
        state, self.state = self.state, None
        if state is not None:
            state.close()

    def load(self) -> None:
        """Load the state: the latest snapshot, and the log behind it."""
        log = self.opened_log()
        collects = gc.isenabled()
        gc.disable()  # millions of new objects, none of them garbage
        try:
            snapshot = log.begin()
            self.drop_state()
            if snapshot is None:
                self.state, self.latest_at = SpillingState(log.disk.scratch), 0
            else:
                self.state, self.latest_at = self._read(log, snapshot)
            self.catch_up()
            self._ends.notify_all()  # what ended before the snapshot was taken is in no event
        finally:
            if collects:
                gc.enable()

    def _read(self, log: Log, snapshot: Snapshot) -> tuple[SpillingState, int]:
        try:
            return read_snapshot(log.disk, snapshot)
        except FileNotFoundError:
            log.refresh()
            if log.manifest.snapshot != snapshot:
                raise Superseded from None  # W8: a newer one has taken its place
            raise Broken(f"{snapshot.name} is missing from {self._path}; restore the folder from a backup") from None

    def catch_up(self, within_s: float | None = None) -> bool:
        """Apply what others appended, or as much of it as can be in that time; returns whether there was anything."""
        log, state = self.log, self.state
        assert log is not None
        assert state is not None
        before, began = log.position, time.monotonic()
        for frame in log.read_new():
            events = frame.events()
            apply_all(state, events)
            self._ends.observe(events)
            if state.is_spill_due and not log.is_locked:
                state.spill_oldest()
            if events:
                self.latest_at = events[-1].at
            if within_s is not None and time.monotonic() - began >= within_s:
                break
        return log.position > before
