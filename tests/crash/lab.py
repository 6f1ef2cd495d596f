"""What the crash tests share: stores on a simulated machine, and looking into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from leasemill.kernel.image import digest
from leasemill.kernel.state import State
from leasemill.store.file.disk import Disk
from leasemill.store.file.log import Log
from leasemill.store.file.manifest import Snapshot
from leasemill.store.file.options import FileOptions
from leasemill.store.file.snapshot import take_snapshot
from leasemill.store.file.store import FileStore
from leasemill.store.system import Clock, Entropy
from tests.crash.walk import Model
from tests.lab.faults import SimulatedDisk, SimulatedMachine

SEGMENT_BYTES = 4096


def open_simulated(
    machine: SimulatedMachine,
    folder: Path,
    clock: Clock | None = None,
    *,
    entropy: Entropy | None = None,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> FileStore:
    """A store in a process of its own, unless its disk is given."""
    options = FileOptions(segment_bytes=segment_bytes, does_maintenance=False, lock_timeout_s=0.0)
    used = disk or machine.process()
    return FileStore(folder, options=options, clock=clock, entropy=entropy, disk=used, machine=machine)


def snapshot(
    machine: SimulatedMachine, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, seal_first: bool = False
) -> Snapshot | None:
    """Take one, in a process of its own; `folder` is a real one, for the builder's lock."""
    disk = machine.process()
    log = Log(disk, machine, segment_bytes=segment_bytes, lock_timeout_s=0.0)
    try:
        return take_snapshot(disk, log, folder, keep_segments=False, seal_first=seal_first)
    finally:
        log.close()


@contextmanager
def following(store: FileStore, models: Sequence[Model], now: int) -> Iterator[None]:
    """What the store does in here; if it records which leases expired before it was opened, the models do too."""
    was_settled = store._replica.is_settled
    try:
        yield
    finally:
        if store._replica.is_settled and not was_settled:
            for model in models:
                model.settle(now)


def disk_of(store: FileStore) -> SimulatedDisk:
    disk = log_of(store).disk
    assert isinstance(disk, SimulatedDisk)
    return disk


def log_of(store: FileStore) -> Log:
    """The store's log, opened if a failure has closed it."""
    return store._replica.opened_log()


def state_of(store: FileStore) -> State:
    """The store's replica, up to date."""
    store.totals()
    assert store._replica.state is not None
    return store._replica.state


def digest_of(store: FileStore) -> str:
    return digest(state_of(store))
