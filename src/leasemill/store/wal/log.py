"""The log of one folder, as one process sees it: read, append, sync, rotate, recover.

Rules W1 to W13 of docs/log-format.md. Positions are bytes from the log's beginning, over all segments. One thread uses
a Log at a time; other processes are kept out by the folder's lock, which `locked` takes. What must never happen here:
a position counted as synced that a sync has not covered; a frame read past damage.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec.structs import replace

from leasemill.errors import Broken, Invalid, Unavailable
from leasemill.kernel.events import AnyEvent
from leasemill.store.wal.clock import Machine, anchored
from leasemill.store.wal.control import Control
from leasemill.store.wal.disk import Disk, File
from leasemill.store.wal.format import (
    FORMAT,
    FRAME_HEADER_BYTES,
    LARGEST_BODY,
    SEAL_BYTES,
    SEGMENT_HEADER_BYTES,
    Cut,
    Frame,
    Kind,
    check_segment_header,
    events_frame,
    read_frame,
    seal_frame,
    segment_header,
    whole_frames_behind,
)
from leasemill.store.wal.manifest import (
    BootClock,
    Manifest,
    Segment,
    Snapshot,
    adopt_manifest,
    read_manifest,
    write_manifest,
)

LOGGER: Final = logging.getLogger("leasemill.wal")
SPARE: Final = "spare"
BUILDER_LOCK: Final = "snapshot-lock"
LONGEST_READ_BYTES: Final = 4 * 1024 * 1024
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
SPARE_RETRY_S: Final = 1.0
_spares_made: Final = itertools.count(1)
RESERVED_SHARE: Final = 4
BYTES_TO_FINISH: Final = 512
LOCK_WAIT_S: Final = 0.000_3


class Superseded(Exception):
    """What this process has read is not the log any more: begin anew from the manifest."""


class LockTimeout(Unavailable):
    """Another process kept the lock: nothing was decided, and what was read is as good as before."""


class Log:
    """Where this process is in the log, and what it may do there. Closes the disk with itself, and when it cannot be
    opened."""

    def __init__(
        self, disk: Disk, machine: Machine, *, segment_bytes: int, lock_timeout_s: float, may_found: bool = True
    ) -> None:
        self._disk = disk
        self._machine = machine
        self._boot_id = machine.boot_id()
        self._segment_bytes = segment_bytes
        self._lock_timeout_s = lock_timeout_s
        self._control = Control(disk, f"{self._boot_id} {disk.identity}")
        self._may_found = may_found
        self._file: File | None = None
        self._file_bytes = 0
        self._is_locked = False
        self._was_last = False
        self._spare_tried_at = -SPARE_RETRY_S
        self._spare_looked_for: str | None = None
        self.position = 0
        self.synced_to = 0
        try:
            with self.locked():
                self._manifest = self._first_look()
        except BaseException:
            self.close()
            raise
        if self._file is None:
            self._segment = self._manifest.segments[0]

    # Where things are

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def clock(self) -> BootClock:
        return self._manifest.clock

    @property
    def is_new_boot(self) -> bool:
        """W10: no process has ended this boot's inherited leases yet."""
        return self._manifest.clock.boot_id != self._boot_id

    @property
    def is_caught_up(self) -> bool:
        """All that others appended was read and nothing is amiss: readings can be answered without the lock."""
        is_sound = not self.is_new_boot and not self._control.is_poisoned
        return is_sound and self.position >= self._control.tail

    @property
    def sealed_bytes(self) -> int:
        """What a snapshot could cover that the latest one does not."""
        snapshot = self._manifest.snapshot
        return self._manifest.last.first - (0 if snapshot is None else snapshot.position)

    @property
    def is_there(self) -> bool:
        """Whether the folder still has the files that are open here."""
        return self._disk.is_there

    def refresh(self) -> None:
        """Look at the manifest again: another process may have replaced it."""
        self._manifest = self._read_manifest()

    def is_still_new_boot(self) -> bool:
        """The same, looking again whether another process has ended them meanwhile."""
        if self.is_new_boot:
            self.refresh()
        return self.is_new_boot

    def forget(self) -> None:
        """Let go of what was read and of the file it was read from: it is not the log any more."""
        if not self._control.is_current:
            with self.locked():
                self._first_look()
        self._manifest = self._read_manifest()
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin(self) -> Snapshot | None:
        """Go to where reading starts: behind the returned snapshot, or at the very beginning."""
        self._manifest = self._read_manifest()
        snapshot = self._manifest.snapshot
        self._go_to(self._manifest.segments[0].first if snapshot is None else snapshot.position)
        return snapshot

    def skip_to_tail(self) -> None:
        """W9: go where others got to without reading what lies before; needs the lock."""
        assert self._is_locked
        tail = self._control.tail
        if self._file is None or self._control.segment != self._segment.first:
            self._manifest = self._read_manifest()
            self._go_to(tail)
        else:
            self.position = tail

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._control.close()
        self._disk.close()

    # The lock

    @contextmanager
    def locked(self, meanwhile: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the folder's lock. While others do, `meanwhile` may do something useful, and tells whether it did.
        W11: a process that is stopped in here stops the folder."""
        until = time.monotonic() + self._lock_timeout_s
        try:
            while not self._lock_soon():
                if time.monotonic() >= until:
                    raise LockTimeout(
                        f"process {self._control.holder} has held the lock of {self._disk.where} for "
                        f"{self._lock_timeout_s:g} s; if it is stopped or hangs, continue or end it"
                    )
                while meanwhile():
                    pass
            self._was_last = self._control.take()
            self._is_locked = True
            yield
            self._control.leave()
        finally:  # also of a wait that was interrupted just when it got the lock
            self._is_locked = False
            with suppress(ValueError):  # closed meanwhile
                self._disk.unlock()

    def _lock_soon(self) -> bool:
        try:
            self._disk.lock(min(LOCK_WAIT_S, self._lock_timeout_s))
        except TimeoutError:
            return False
        return True

    def check(self) -> None:
        """Under the lock: recover a poisoned folder, and see that what was read is still the log."""
        assert self._is_locked
        if not self._control.is_current:
            self._first_look()
            raise Superseded
        if self._control.is_folder_unsynced:
            self._disk.sync_folder()
            self._control.is_folder_unsynced = False
        if self._control.is_poisoned:
            self._recover()
        self.check_generation()

    def check_generation(self) -> None:
        if self._control.generation != self._manifest.generation:
            raise Superseded

    # Reading

    def read_new(self) -> Iterator[Frame]:
        """W2: the whole frames behind `position`, which moves along. Without the lock it stops where one is being
        written; with it, a frame that is not whole is damage and dealt with."""
        if self._is_at_tail():
            return
        length = self._bytes_behind()
        while True:
            if self._segment.end is not None and self.position >= self._segment.end and not self._enter_next():
                return
            content, first = self._read_ahead(length), self.position
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
            elif found is Cut.SHORT and self._left_in_segment() > len(content) - (self.position - first):
                length = self._bytes_behind() if self.position > first else length * 4
            elif self.position == self._segment.end:
                length = self._bytes_behind()  # W5: a segment that a recovery cut short has no seal
            else:
                if self._is_locked:
                    self._expect_tail(content[self.position - first :], found)
                return

    def _is_at_tail(self) -> bool:
        """Under the lock, when nobody else has had it since this process told how far it wrote: nothing follows.

        Without the lock the page's word is not enough: a frame is written before it is told, and whoever was woken by
        the writing would not look again."""
        is_told = self.position == self._control.tail and self._segment.end is None and self._control.is_current
        return is_told and self._is_locked and self._was_last

    def _expect_tail(self, rest: bytes, found: Cut) -> None:
        """No whole frame follows here: this must be where the log ends."""
        is_short_of_end = self._segment.end is not None or (
            self._control.is_current and self.position < self._control.tail
        )
        if is_short_of_end or found is Cut.DAMAGE or (found is Cut.SHORT and rest.strip(b"\0")):
            self._cut_tail(is_short_of_end=is_short_of_end)

    def _bytes_behind(self) -> int:
        """How much to read at once: as much as others are known to have appended, within reason."""
        if not self._control.is_current:
            return LONGEST_READ_BYTES  # nobody in this boot knows yet
        behind = self._control.tail - self.position
        return FRAME_HEADER_BYTES + max(0, min(behind, LONGEST_READ_BYTES))

    def _read_ahead(self, length: int) -> bytes:
        assert self._file is not None
        return self._file.read(self._offset(self.position), min(length, self._left_in_segment()))

    def _offset(self, position: int) -> int:
        return SEGMENT_HEADER_BYTES + position - self._segment.first

    def _left_in_segment(self) -> int:
        end = self._segment.end
        if end is not None:
            return end - self.position
        return max(0, self._file_bytes - self._offset(self.position))

    def _enter_next(self, position: int | None = None) -> bool:
        """Behind a segment's end: go to the next one, made now if its maker died before naming it. Without the lock
        it may be in the making: then stay."""
        position = self.position if position is None else position
        manifest = self._read_manifest()
        if manifest.generation != self._manifest.generation:
            raise Superseded
        self._manifest = manifest
        if manifest.last.first < position:
            if not self._is_locked:
                return False
            self._sync_file()  # W6: whoever sealed it may have died before it was synced
            self.position = position
            self._name_segment(self._written_ahead(position))
        self._go_to(position)
        return True

    def _go_to(self, position: int) -> None:
        segment = next(
            (
                segment
                for segment in reversed(self._manifest.segments)
                if segment.first <= position and (segment.end is None or position < segment.end)
            ),
            None,
        )
        if segment is None:
            raise Superseded  # W8: the segment is gone; a snapshot stands for it
        if self._file is None or segment.name != self._segment.name:
            try:
                file = self._disk.open(segment.name)
            except FileNotFoundError:
                if self._read_manifest() != self._manifest:
                    raise Superseded from None
                raise Broken(
                    f"{segment.name} is missing from {self._disk.where}; restore the folder from a backup"
                ) from None
            check_segment_header(segment.name, file.read(0, SEGMENT_HEADER_BYTES), segment.first)
            if self._file is not None:
                self._file.close()
            self._file, self._file_bytes = file, file.size()
        self._segment = segment
        self.position = position
        self.synced_to = max(self.synced_to, self._manifest.last.first)

    def _read_manifest(self) -> Manifest:
        manifest = read_manifest(self._disk)
        if manifest is None:
            raise Unavailable(f"the log in {self._disk.where} was removed while it was in use")
        return manifest

    # Damage

    def _cut_tail(self, *, is_short_of_end: bool = False) -> None:
        """W3: at `position` no whole frame follows. Behind everything known to be synced that is a torn tail: cut and
        wiped. Before it, or before the end that others wrote, data is damaged: refuse."""
        assert self._file is not None
        content = self._file.read(self._offset(self.position), self._left_in_segment())
        behind = list(whole_frames_behind(content, 1, self.position))
        synced_to = max([self.synced_to, *(frame.synced_to for frame in behind)])
        if is_short_of_end or self.position < synced_to:
            raise Broken(
                f"{self._segment.name} in {self._disk.where} is damaged at byte {self._offset(self.position)} "
                f"(position {self.position}): the log goes on behind it, so this is not a torn write. "
                "Nothing was changed. Restore the folder from a backup, or look with: leasemill wal verify"
            )
        left = len(content.rstrip(b"\0"))
        self._file.write(self._offset(self.position), bytes(left))
        self._sync_file()
        LOGGER.warning(
            "torn tail cut: %d bytes (%d whole frames) behind position %d of %s were never acknowledged",
            left,
            len(behind),
            self.position,
            self._disk.where,
        )

    def _first_look(self) -> Manifest:
        """Under the lock, first in this boot or in this folder: find the tail, and wipe what a crash left behind it."""
        manifest = read_manifest(self._disk)
        if manifest is None:
            manifest = self._found()
        if self._control.is_current:
            return manifest
        self._manifest = manifest
        self._go_to(manifest.last.first)
        for _ in self.read_new():
            pass
        assert self._file is not None
        rest = self._file.read(self._offset(self.position), self._left_in_segment())
        if rest.strip(b"\0"):
            self._cut_tail()  # zeros, then remains: W4
        self._remove_strays()
        self._disk.sync_folder()
        self._control.begin(self._manifest.generation, self._segment.first, self.position)
        return self._manifest

    def _found(self) -> Manifest:
        """A new log, in an empty folder."""
        if not self._may_found:
            raise Unavailable(f"the log in {self._disk.where} is gone; put it back, or restart its processes")
        segment = Segment(_segment_name(0, 1), 0)
        manifest = Manifest(FORMAT, 1, anchored(self._machine, 0), (segment,), acquire_queues=())
        write_manifest(self._disk, manifest)
        self._write_segment(segment)
        self._name_segment(manifest)
        return manifest

    def _remove_strays(self) -> None:
        kept = {BUILDER_LOCK, *(segment.name for segment in self._manifest.segments)}
        if self._manifest.snapshot is not None:
            kept.add(self._manifest.snapshot.name)
        for name in self._disk.names():
            if name.endswith(".new") or (name.startswith(("segment-", "snapshot-")) and name not in kept):
                self._disk.remove(name)

    # Writing

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Under the lock, at the tail: one frame. Answers the position behind it, to be synced."""
        assert self._is_locked
        frame = events_frame(events, self.position, self.synced_to)
        if len(frame) > LARGEST_BODY:
            raise Invalid(f"{len(frame):,} bytes in one append; at most {LARGEST_BODY:,}: send smaller batches")
        if self._left_in_segment() < len(frame) + SEAL_BYTES:
            self._rotate(len(frame))
            frame = events_frame(events, self.position, self.synced_to)
        assert self._file is not None
        self._file.write(self._offset(self.position), frame)
        self.position += len(frame)
        self._control.tail = self.position
        return self.position

    def sync(self, position: int) -> None:
        """W1: return when everything before `position` is on disk, and no sync has failed anywhere."""
        if self.synced_to < position:
            self._sync_file()
        if self._control.is_poisoned or self._control.generation != self._manifest.generation:
            raise Unavailable(f"a sync of {self._disk.where} failed in another process; repeat the call")
        self.synced_to = max(self.synced_to, position)

    def _sync_file(self) -> None:
        assert self._file is not None
        try:
            self._file.sync()
        except OSError as error:
            self._control.is_poisoned = True  # W5: for every process, not only this one
            raise Unavailable(
                f"the disk under {self._disk.where} failed to sync ({error.strerror}); nothing since the last "
                "sync is acknowledged; check the disk, then repeat the call"
            ) from error

    def anchor(self, latest_at: int) -> None:
        """W10: under the lock, when the leases of an earlier boot have been ended: this boot's clock."""
        assert self._is_locked
        clock = anchored(self._machine, latest_at)
        manifest = self._read_manifest()
        self._replace(replace(manifest, clock=clock))

    def _replace(self, manifest: Manifest) -> None:
        """W6: should this process die in between, the next one syncs the folder before it writes anything."""
        write_manifest(self._disk, manifest)
        self._control.acquire_digest = manifest.acquire_digest
        self._control.is_folder_unsynced = True
        adopt_manifest(self._disk)
        self._control.is_folder_unsynced = False
        self._manifest = manifest

    # How queues are used

    def knows_acquire_queues(self) -> bool:
        """False in a folder of a version that did not list them."""
        return self._manifest.acquire_queues is not None

    def may_be_acquired(self, queues: Collection[str]) -> bool:
        """W9: under the lock, whether one of these queues may be used with acquire; a list that others have extended
        is read again. The digest is of the list that is about to count when a process dies in between: then this
        one reads the list again once too often."""
        assert self._is_locked
        if self._control.acquire_digest != self._manifest.acquire_digest:
            self.refresh()
            self._control.acquire_digest = self._manifest.acquire_digest
        listed = self._manifest.acquire_queues
        return listed is None or not set(listed).isdisjoint(queues)

    def list_acquired(self, queues: Collection[str]) -> None:
        """W9: under the lock, before an acquire in one of these queues is appended: their names are in the manifest,
        on disk."""
        assert self._is_locked
        if set(queues) <= set(self._manifest.acquire_queues or ()) and self.knows_acquire_queues():
            return
        manifest = self._read_manifest()
        listed = tuple(sorted({*(manifest.acquire_queues or ()), *queues}))
        if listed == manifest.acquire_queues:
            self._manifest = manifest
            return
        try:
            self._replace(replace(manifest, acquire_queues=listed))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise self._no_space() from error

    # Segments

    def seal(self) -> None:
        """Under the lock: end the last segment, so that a snapshot can cover all there is."""
        self.skip_to_tail()
        for _ in self.read_new():
            pass
        if self.position > self._segment.first:
            self._rotate(0)

    def _rotate(self, frame_bytes: int) -> None:
        """W6: the old segment is sealed and synced before the new one is named. W7: all that needs space is written
        before that, so that a full disk seals nothing."""
        assert self._file is not None
        following = self._written_ahead(self.position + SEAL_BYTES, frame_bytes)
        self._file.write(self._offset(self.position), seal_frame(self.position, self.synced_to))
        self.sync(self.position + SEAL_BYTES)
        self.position += SEAL_BYTES
        self._name_segment(following)
        self._go_to(self.position)

    def _written_ahead(self, first: int, frame_bytes: int = 0) -> Manifest:
        """The manifest with a segment that begins at `first`: both are written, and neither counts yet."""
        manifest = self._read_manifest()
        last = manifest.last
        segment = Segment(_segment_name(first, manifest.generation), first)
        segments = (*manifest.segments[:-1], Segment(last.name, last.first, first), segment)
        following = replace(manifest, segments=segments)
        try:
            write_manifest(self._disk, following)
            self._write_segment(segment, frame_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._control.is_full = True
            raise self._no_space() from error
        return following

    def _write_segment(self, segment: Segment, frame_bytes: int = 0) -> None:
        """Made from the spare if there is one; it is taken away first, since others may replace it at any time."""
        made, header = f"{segment.name}.new", segment_header(segment.first)
        needed = SEGMENT_HEADER_BYTES + frame_bytes + SEAL_BYTES
        with suppress(FileNotFoundError):
            self._disk.rename(SPARE, made)
        try:
            file = self._disk.open(made)
        except FileNotFoundError:
            file = self._disk.create(made, max(self._segment_bytes, needed), header)
        else:
            if file.size() < needed:
                file.close()
                file = self._disk.create(made, max(self._segment_bytes, needed), header)
            else:
                file.write(0, header)
                file.sync()
        file.close()

    def _name_segment(self, manifest: Manifest) -> None:
        """Segment and manifest, as written, count from now on."""
        segment = manifest.last
        self._control.is_folder_unsynced = True
        self._disk.rename(f"{segment.name}.new", segment.name)
        self._disk.sync_folder()
        adopt_manifest(self._disk)
        self._control.is_folder_unsynced = False
        self._manifest = manifest
        self._control.segment = self._control.tail = segment.first

    def should_prepare_spare(self) -> bool:
        """Half of the segment is used, and this process has not seen to the next one yet: now it does."""
        if self._spare_looked_for == self._segment.name or self._left_in_segment() >= self._segment_bytes // 2:
            return False
        self._spare_looked_for = self._segment.name
        return True

    def prepare_spare(self) -> None:
        """Make the next segment ahead of its use. Needs no lock, and other threads may do it too."""
        self._spare_tried_at = time.monotonic()
        is_full = False
        try:
            if SPARE not in self._disk.names():
                made = f"{SPARE}-{os.getpid()}-{next(_spares_made)}.new"
                self._disk.create(made, self._segment_bytes).close()
                self._disk.rename(made, SPARE)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            is_full = True
        with suppress(TypeError, ValueError):  # closed meanwhile
            if is_full and not self._control.is_full:
                LOGGER.warning("no room for another segment in %s: enqueue is refused until there is", self._disk.where)
            self._control.is_full = is_full

    @staticmethod
    def require_weight(weight: int) -> None:
        """Refuse a call that alone could be too large for a frame; half of it is left for what else is in its batch."""
        if weight > LARGEST_BODY // 2:
            raise Invalid(f"{weight:,} bytes in one call; at most {LARGEST_BODY // 2:,}: send smaller batches")

    def require_room_to_grow(self) -> None:
        """W7: what adds jobs is refused while there is no room for another segment."""
        if self._is_still_full():
            raise self._no_space()

    def require_room_to_finish(self, jobs: int) -> None:
        """W7: nor is a job given out any more when what is left is only enough to end as many as then run."""
        if not self.has_room_to_finish(jobs):
            raise self._no_space()

    def has_room_to_finish(self, jobs: int) -> bool:
        reserve = max(self._segment_bytes // RESERVED_SHARE, jobs * BYTES_TO_FINISH)
        return self._left_in_segment() >= reserve or not self._is_still_full()

    def _is_still_full(self) -> bool:
        if self._control.is_full and time.monotonic() - self._spare_tried_at >= SPARE_RETRY_S:
            self.prepare_spare()
        return self._control.is_full

    def _no_space(self) -> Unavailable:
        return Unavailable(
            f"no space left for {self._disk.where}: free some, or purge finished jobs and take a snapshot "
            "(leasemill wal snapshot); running jobs can still finish"
        )

    # Recovery from a failed sync

    def _recover(self) -> None:
        """W5: what follows the last synced position is written anew, into a new segment, and synced there. The pages
        of the old one cannot be trusted: the system may call lost ones clean."""
        manifest = self._read_manifest()
        self._manifest = manifest
        synced_to = max(self.synced_to, manifest.last.first)
        self._go_to(synced_to)
        assert self._file is not None
        content = self._file.read(self._offset(synced_to), self._left_in_segment())
        whole = 0
        while isinstance(frame := read_frame(content, whole, synced_to + whole), Frame) and frame.kind is Kind.EVENTS:
            whole = frame.end - synced_to
        generation = manifest.generation + 1
        try:
            segment = self._rewritten(synced_to, generation, content[:whole])
        except OSError as error:
            raise Unavailable(
                f"the disk under {self._disk.where} still fails ({error.strerror}); check it, then repeat the call"
            ) from error
        last = manifest.last
        kept = manifest.segments[:-1]
        if synced_to > last.first:
            kept = (*kept, Segment(last.name, last.first, synced_to))
        self._replace(replace(manifest, generation=generation, segments=(*kept, segment)))
        self._control.segment = synced_to
        self._control.tail = synced_to + whole
        self._control.generation = generation
        self._control.is_poisoned = False
        LOGGER.warning(
            "recovered %s from a failed sync: %d bytes after position %d written again",
            self._disk.where,
            whole,
            synced_to,
        )
        raise Superseded

    def _rewritten(self, first: int, generation: int, content: bytes) -> Segment:
        segment = Segment(_segment_name(first, generation), first)
        size = max(self._segment_bytes, SEGMENT_HEADER_BYTES + len(content) + SEAL_BYTES)
        self._disk.create(f"{segment.name}.new", size, segment_header(first) + content).close()
        self._disk.rename(f"{segment.name}.new", segment.name)
        self._disk.sync_folder()
        return segment

    # Snapshots

    def adopt(self, snapshot: Snapshot) -> list[str]:
        """Under the lock: the snapshot stands for all before its position. Answers the files no longer needed."""
        assert self._is_locked
        manifest = self._read_manifest()
        if manifest.snapshot is not None and manifest.snapshot.position >= snapshot.position:
            return [snapshot.name]
        gone = [
            segment for segment in manifest.segments if segment.end is not None and segment.end <= snapshot.position
        ]
        kept = tuple(segment for segment in manifest.segments if segment not in gone)
        self._replace(replace(manifest, segments=kept, snapshot=snapshot))
        return [segment.name for segment in gone] + ([] if manifest.snapshot is None else [manifest.snapshot.name])


def _segment_name(first: int, generation: int) -> str:
    return f"segment-{first:016x}-{generation}"
