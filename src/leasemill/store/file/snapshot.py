"""Snapshots: the state at a position, in frames of the log's own format, so that opening stays short.

Built from the previous snapshot and sealed segments, away from every lock and every live replica; only the entry in the
manifest takes the lock. Rule W8.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TextIO, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Broken, Unavailable
from leasemill.kernel.image import ImageWithWorkerCommands, KeyImage, image, jobs_in_order, restore
from leasemill.kernel.machine import apply
from leasemill.kernel.model import Job
from leasemill.kernel.state import State
from leasemill.store.file.control import FULL
from leasemill.store.file.disk import Disk, File
from leasemill.store.file.format import Frame, Kind, frame_bytes, read_frame
from leasemill.store.file.log import Log
from leasemill.store.file.manifest import Snapshot
from leasemill.store.file.recovery import BUILDER_LOCK
from leasemill.store.file.space import BLOCK_BYTES, FOR_SNAPSHOTS, NO_SPACE, SNAPSHOT_RESERVE, Space, remove_left_spares
from leasemill.store.file.spill.state import SpillingState
from leasemill.store.operations import OnProgress, not_shown

JOBS_IN_A_FRAME: Final = 1_000
KEYS_IN_A_FRAME: Final = 10_000
OTHER_BUILDER_S: Final = 60.0
PAUSE_S: Final = 0.05
READ_BYTES: Final = 4 * 1024 * 1024
PROGRESS_BYTES: Final = 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_keys = msgspec.msgpack.Decoder(list[KeyImage]).decode


class Head(Struct, frozen=True, array_like=True):
    """The first frame. Then frames of unique keys, left out of the image because there may be millions, and of jobs."""

    image: ImageWithWorkerCommands
    jobs: int
    latest_at: int
    key_frames: int = 0


_decode_head = msgspec.msgpack.Decoder(Head).decode


def write_snapshot(disk: Disk, space: Space, state: State, latest_at: int, position: int) -> Snapshot:
    """Write and sync the file; it counts only once the manifest names it. W7: on a full disk it uses its reserve."""
    name, reserved = f"snapshot-{position:016x}", disk.size(SNAPSHOT_RESERVE)
    try:
        create = partial(disk.create, f"{name}.new", 0)
        with closing(space.from_reserve(create, BLOCK_BYTES, FOR_SNAPSHOTS)) as file:
            offset = 0
            for body in _bodies(state, latest_at):
                frame = frame_bytes(Kind.EVENTS, offset, 0, body)
                space.from_reserve(partial(file.write, offset, frame), len(frame), FOR_SNAPSHOTS)
                offset += len(frame)
            seal = frame_bytes(Kind.SEAL, offset, 0, b"")
            space.from_reserve(partial(file.write, offset, seal), len(seal), FOR_SNAPSHOTS)
            file.sync()
    except OSError as error:
        disk.remove(f"{name}.new")  # on a full disk a part of a snapshot only takes room
        if error.errno not in NO_SPACE:
            raise
        space.take_back(SNAPSHOT_RESERVE, reserved)
        raise space.no_room_for_snapshot() from error
    disk.rename(f"{name}.new", name)
    disk.sync_folder()
    return Snapshot(name, position)


def _bodies(state: State, latest_at: int) -> Iterator[bytes]:
    whole = image(state)
    keys = [whole.keys[first : first + KEYS_IN_A_FRAME] for first in range(0, len(whole.keys), KEYS_IN_A_FRAME)]
    yield _encode(Head(cast(ImageWithWorkerCommands, replace(whole, keys=())), len(state.jobs), latest_at, len(keys)))
    for some in keys:
        yield _encode(some)
    chunk: list[Job] = []
    for job in jobs_in_order(state):
        chunk.append(job)
        if len(chunk) == JOBS_IN_A_FRAME:
            yield _encode(chunk)
            chunk = []
    if chunk:
        yield _encode(chunk)


def read_snapshot(disk: Disk, snapshot: Snapshot) -> tuple[SpillingState, int]:
    """Read the state, and the time of the latest event in it. Most of its jobs stay in the file."""
    state = SpillingState(disk.scratch)
    try:
        file = disk.open(snapshot.name)
        origin = state.take_file(file)
        frames = _frames(file, f"{snapshot.name} in {disk.where}")
        head = _decode_head(next(frames).body)
        keys = tuple(key for frame in islice(frames, head.key_frames) for key in _decode_keys(frame.body))
        restore(replace(head.image, keys=keys), _jobs_in_memory(state, origin, frames), state)
        state.end_loading()
        if len(state.jobs) != head.jobs:
            raise Broken(f"{snapshot.name} in {disk.where} holds {len(state.jobs)} jobs, it should hold {head.jobs}")
    except BaseException:
        state.close()
        raise
    return state, head.latest_at


def _jobs_in_memory(state: SpillingState, origin: int, frames: Iterator[Frame]) -> Iterator[Job]:
    """Yield the jobs that are not left in the file, which begins at the location `origin`."""
    for frame in frames:
        yield from state.load(_decode_records(frame.body), origin + frame.end)


def _frames(file: File, what: str) -> Iterator[Frame]:
    content, first, position, length = b"", 0, 0, READ_BYTES
    while True:
        found = read_frame(content, position - first, position)
        if isinstance(found, Frame):
            if found.kind is Kind.SEAL:
                return
            position = found.end
            yield found
            continue
        if first + len(content) >= file.size():
            raise Broken(f"{what} is damaged at byte {position}; restore the folder from a backup")
        length = length * 2 if position == first and content else READ_BYTES
        content, first = file.read(position, length), position


def take_snapshot(
    disk: Disk,
    log: Log,
    folder: Path,
    *,
    keep_segments: bool,
    seal_first: bool = False,
    on_progress: OnProgress = not_shown,
) -> Snapshot | None:
    """Cover every sealed segment with a new snapshot; None if there is nothing to cover or another process does it.
    `seal_first`: cover the last segment too, as a command does, which waits for a builder that a store has started.
    `on_progress`: in bytes of the log that are covered."""
    # Builders exclude each other by a lock of their own. Writers go on meanwhile: a builder reads sealed segments,
    # which nobody changes, and takes the folder's lock only to name what it has written. Its state is its own, read
    # from the snapshot before, so any process can be a builder; a store starts a child for it.
    with (folder / BUILDER_LOCK).open("w") as guard:
        if not _is_alone(guard, OTHER_BUILDER_S if seal_first else 0.0):
            return None
        _remove_unfinished(disk)
        not_sealed = _seal(log) if seal_first else None
        earlier = log.begin()
        target = log.manifest.last.first
        if log.position >= target:
            if not_sealed is not None:
                raise not_sealed
            return None
        state, latest_at = (SpillingState(disk.scratch), 0) if earlier is None else read_snapshot(disk, earlier)
        first = shown_at = log.position
        with closing(state):
            for frame in log.read_new():
                if frame.position >= target:
                    break
                if frame.position >= shown_at:
                    on_progress(frame.position - first, target - first)
                    shown_at = frame.position + PROGRESS_BYTES
                for event in frame.events():
                    apply(state, event)
                    latest_at = event.at
                if state.is_spill_due:
                    state.spill_oldest()
            if log.position < target:
                raise Broken(
                    f"the log in {disk.where} is damaged at position {log.position}; see: leasemill wal verify"
                )
            log.measure_room()
            snapshot = write_snapshot(disk, log.space, state, latest_at, target)
        # Named first, removed afterwards: killed in between, this leaves files that no manifest names, and the first
        # look of the next boot removes them. Processes that have one of them open read on in it, or begin again (W8).
        with log.locked():
            gone = log.adopt(snapshot)
        for name in gone:
            discard(disk, folder, name, keep=keep_segments and name.startswith("segment-"))
        _restore_reserves(log)
    return snapshot


def _is_alone(guard: TextIO, wait_s: float) -> bool:
    """Whether no other builder is at work, or the other ends within this time. Closing the file releases the lock."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(PAUSE_S)
        else:
            return True


def _seal(log: Log) -> Unavailable | None:
    """End the last segment. Without room for the next one it stays as it is: covering those before it frees some."""
    with log.locked():
        log.check()
        try:
            log.seal()
        except Unavailable as error:
            if not log.page[FULL]:
                raise
            return error
    return None


def _restore_reserves(log: Log) -> None:
    """Give what was freed to the reserves first; then jobs are accepted again, if there is room for more."""
    log.refresh()
    log.measure_room()
    log.space.shrink_snapshot_reserve()
    if log.page[FULL]:
        log.space.prepare_spare()


def _remove_unfinished(disk: Disk) -> None:
    """What an earlier builder left when it was killed, and what other processes left of a spare. Holding the builder's
    lock, nobody else writes a snapshot."""
    remove_left_spares(disk)
    for name in disk.names():
        if name.startswith("snapshot-") and name.endswith(".new"):
            disk.remove(name)


def discard(disk: Disk, folder: Path, name: str, *, keep: bool) -> None:
    if not keep:
        disk.remove(name)
        return
    archive = folder / "archive"
    archive.mkdir(exist_ok=True)
    (folder / name).replace(archive / name)
