"""The log of one folder, as one process sees it: lock, append, sync, rotate.

Rules W1 to W13 of docs/log-format.md. One thread uses a Log at a time; other processes are excluded by the folder's
lock, which `locked` takes. What must never happen here: a position counted as synced that a sync has not covered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from leasemill.errors import Invalid, Unavailable
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import PLAIN_FORMAT
from leasemill.store.file.clock import Machine
from leasemill.store.file.control import (
    ACQUIRE_DIGEST,
    FOLDER_UNSYNCED,
    GENERATION,
    HOLDER,
    LAST,
    LOOKED,
    POISONED,
    SEGMENT,
    TAIL,
)
from leasemill.store.file.disk import Disk
from leasemill.store.file.format import (
    FRAME_HEADER_BYTES,
    LARGEST_BODY,
    SEAL_BYTES,
    SEGMENT_HEADER_BYTES,
    Cut,
    Frame,
    Kind,
    encode_events,
    frame_bytes,
)
from leasemill.store.file.manifest import Manifest, Snapshot
from leasemill.store.file.reader import Superseded
from leasemill.store.file.recovery import cut_tail, look_first, rewrite_unsynced
from leasemill.store.file.space import ALL_RESERVES, FOR_REPORTS, NO_RESERVE, NO_SPACE, Reserves
from leasemill.store.file.writer import Writer

LOCK_WAIT_S: Final = 0.000_3


class LockTimeout(Unavailable):
    """Another process held the lock: nothing was decided, and what was read is as good as before."""


class LogLock:
    """The folder's lock, held while it is entered. It is a class and not a generator, since every call enters it."""

    __slots__ = ("_log", "meanwhile")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.meanwhile: Callable[[], bool] | None = None

    def __enter__(self) -> None:
        log = self._log
        try:
            try:
                log.disk.lock(log.first_wait_s)
            except TimeoutError:
                log.wait_for_lock(self.meanwhile)
            page, control = log.page, log.control
            # `flock` tells nothing of the previous holder, the control page does. One that released the lock knowing
            # that the log ends at the tail left its number in LOOKED and then in LAST; one that died, or failed, left
            # 0. LAST is cleared at once, so that the next holder finds 0 if this process dies in here.
            last = page[LAST]
            page[LAST] = 0
            page[HOLDER] = control.process_id
            log.is_locked = True
            log.knows_tail = last != 0 and page[LOOKED] == last and control.boot == control.digest
            log.is_intact = (
                log.knows_tail
                and log.file is not None
                and log.segment.end is None
                and page[SEGMENT] == log.segment.first
                and page[GENERATION] == log.manifest.generation
                and not (page[POISONED] or page[FOLDER_UNSYNCED])
            )
            log.is_up_to_date = log.is_intact and log.position == page[TAIL]
        except BaseException as error:  # also of a wait that was interrupted just when it got the lock
            self.__exit__(type(error))
            raise

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Release the lock, and let the next holder know where the log ends if this one knows it. It does not if it
        has neither looked nor found that its predecessor knew: then the frame of a process that died may be behind
        the tail, and the next holder has to look."""
        log = self._log
        try:
            if error is None and log.knows_tail:
                page, me = log.page, log.control.me
                page[LOOKED] = me
                page[LAST] = me
        finally:
            log.is_locked = log.knows_tail = log.is_intact = log.is_up_to_date = False
            log.disk.unlock()


class Log(Writer):
    """The log of one folder. It closes the disk with itself, and when it cannot be opened."""

    def __init__(
        self, disk: Disk, machine: Machine, *, segment_bytes: int, lock_timeout_s: float, may_create: bool = True
    ) -> None:
        super().__init__(disk, machine, segment_bytes)
        self.is_locked = False
        self.is_intact = False
        self.is_up_to_date = False
        self._lock = LogLock(self)
        self._lock_timeout_s = lock_timeout_s
        self.first_wait_s = min(LOCK_WAIT_S, lock_timeout_s)
        try:
            with self.locked():
                look_first(self, may_create=may_create)
                self.folder = self.control.name_folder()
                self.measure_room()
        except BaseException:
            self.close()
            raise
        if self.file is None:
            self.segment = self.manifest.segments[0]

    @property
    def is_new_boot(self) -> bool:
        """Whether no process has ended the leases that this boot inherited yet (W10)."""
        return self.manifest.clock.boot_id != self.boot_id

    def has_read(self, tail: int) -> bool:
        """Whether all before this tail was read and nothing failed: readings can be answered without the lock."""
        return not self.is_new_boot and not self.page[POISONED] and self.position >= tail

    # The lock

    def locked(self, meanwhile: Callable[[], bool] | None = None) -> LogLock:
        """Hold the folder's lock. While others do, `meanwhile` may do something useful, and returns whether it did.
        `is_intact` then: nothing failed, and the log ends at the tail, in the segment this process has open.
        `is_up_to_date`: it has also read up to there, or written the last of it.
        W11: a process that is stopped in here stops the folder."""
        self._lock.meanwhile = meanwhile
        return self._lock

    def wait_for_lock(self, meanwhile: Callable[[], bool] | None) -> None:
        """Wait as long as the folder's timeout allows, catching up between tries: what the holder appends is read while
        it still holds the lock, and not under the lock of this process, where others would wait for it."""
        until = time.monotonic() + self._lock_timeout_s - self.first_wait_s
        while time.monotonic() < until:
            while meanwhile is not None and meanwhile():
                pass
            with suppress(TimeoutError):
                self.disk.lock(self.first_wait_s)
                return
        raise self._lock_timeout() from None

    def _lock_timeout(self) -> LockTimeout:
        return LockTimeout(
            f"process {self.page[HOLDER]} has held the lock of {self.disk.where} for "
            f"{self._lock_timeout_s:g} s; if it is stopped or hangs, continue or end it"
        )

    def check(self) -> None:
        """Under the lock: recover a poisoned folder, and see that what was read is still the log."""
        assert self.is_locked
        if not self.control.is_current:
            look_first(self)
            raise Superseded
        if self.page[FOLDER_UNSYNCED]:
            self.disk.sync_folder()
            self.page[FOLDER_UNSYNCED] = 0
        if self.page[POISONED]:
            rewrite_unsynced(self)
            raise Superseded
        self.check_generation()

    def check_generation(self) -> None:
        if self.page[GENERATION] != self.manifest.generation:
            raise Superseded

    def forget(self) -> None:
        """Drop what was read and the file it was read from: it is not the log any more."""
        if not self.control.is_current:
            with self.locked():
                look_first(self)
        self.refresh()
        self._close_file()

    # Reading under the lock

    def read_new(self) -> Iterator[Frame]:
        """W2: the whole frames behind `position`, which moves along. Without the lock it stops where one is being
        written; with it, a frame that is not whole is damage and dealt with.

        Under the lock nothing follows the tail when whoever had it last knew that.
        Without the lock the page is not enough: a frame is written before the page is, and whoever was woken by the
        writing would not look again."""
        if self.is_intact and self.position == self.page[TAIL]:
            return iter(())
        return super().read_new()

    def skip_to_tail(self) -> None:
        """W9: go where others got to without reading what lies before; needs the lock. What follows, if that is not
        known, may be the frame of a process that died before it recorded how far it wrote."""
        assert self.is_locked
        tail = self.page[TAIL]
        if self.is_intact:
            self.position = tail
            return
        if self.file is None or self.page[SEGMENT] != self.segment.first or tail < self.segment.first:
            self.refresh()
            self.go_to(max(tail, self.manifest.segments[0].first))  # a snapshot may stand for what is before that
        else:
            self.position = tail
        for _ in self.read_new():
            pass

    def _make_next(self, position: int) -> bool:
        """Make the next segment if this process has the lock: the one that began to make it has died."""
        if not self.is_locked:
            return False
        self.sync_file()  # W6: whoever sealed it may have died before it was synced
        self.position = position
        self.name_segment(self.write_ahead(position))
        return True

    def _at_end(self, rest: bytes, found: Cut) -> None:
        """Check, under the lock, that the log ends here; repair or refuse what follows."""
        if not self.is_locked:
            return
        is_short_of_end = self.segment.end is not None or (self.control.is_current and self.position < self.page[TAIL])
        if is_short_of_end or found is Cut.DAMAGE or (found is Cut.SHORT and rest.strip(b"\0")):
            cut_tail(self, is_short_of_end=is_short_of_end)
        if self.control.is_current:
            if self.page[TAIL] != self.position or self.page[SEGMENT] != self.segment.first:
                self.page[SEGMENT], self.page[TAIL] = self.segment.first, self.position  # for a process that died
            self.knows_tail = True

    # Writing

    def append(self, events: Sequence[AnyEvent], version: int = PLAIN_FORMAT, *, may_use_reserve: bool = True) -> int:
        """Under the lock, at the tail: one frame. Returns the position behind it, to be synced. W7: what adds jobs or
        gives them out may not use the reserve."""
        assert self.knows_tail
        if version > self.manifest.format:
            self._raise_format(version)
        body = encode_events(events)
        length = FRAME_HEADER_BYTES + len(body)
        if length > LARGEST_BODY:
            raise Invalid(f"{length:,} bytes in one append; at most {LARGEST_BODY:,}: send smaller batches")
        offset = SEGMENT_HEADER_BYTES + self.position - self.segment.first
        if self.file_bytes - offset < length + SEAL_BYTES:
            self._rotate(length, FOR_REPORTS if may_use_reserve else NO_RESERVE)
            offset = SEGMENT_HEADER_BYTES
        assert self.file is not None
        # If the write fails or this process dies in it, the tail on the page is older than the file: not known, so that
        # the next holder of the lock looks. The frame counts for readers once it is whole, for the page a moment later.
        self.knows_tail = False
        self.file.write(offset, frame_bytes(Kind.EVENTS, self.position, self.synced_to, body, version))
        self.position += length
        self.page[TAIL] = self.position
        self.knows_tail = True
        return self.position

    def sync(self, position: int) -> None:
        """W1: return when everything before `position` is on disk, and no sync has failed anywhere."""
        if self.synced_to < position:
            assert self.file is not None
            try:
                self.file.sync()
            except OSError as error:
                raise self.poison(error) from error
        # Looked at after the sync, because the mark is set without the lock. Where a sync has failed in any process,
        # the system may count the lost pages as clean, and the success of this one says nothing about them.
        if self.page[POISONED] or self.page[GENERATION] != self.manifest.generation:
            raise Unavailable(f"a sync of {self.disk.where} failed in another process; repeat the call")
        self.synced_to = max(self.synced_to, position)

    # Segments

    def seal(self) -> None:
        """Under the lock: end the last segment, so that a snapshot can cover all there is."""
        self.skip_to_tail()
        if self.position > self.segment.first:
            self._rotate(0, ALL_RESERVES)

    def _rotate(self, needed_bytes: int, reserves: Reserves) -> None:
        """W6: the old segment is sealed and synced before the new one is named. W7: all that needs space is written
        before that, so that a full disk seals nothing."""
        assert self.file is not None
        following = self.write_ahead(self.position + SEAL_BYTES, needed_bytes, reserves)
        self.knows_tail = False
        self.file.write(self.offset, frame_bytes(Kind.SEAL, self.position, self.synced_to, b""))
        self.sync(self.position + SEAL_BYTES)
        self.position += SEAL_BYTES
        self.name_segment(following)
        self.go_to(self.position)
        self.knows_tail = True

    # Acquire queues and snapshots, in the manifest

    def may_be_acquired(self, queues: Collection[str]) -> bool:
        """W9: under the lock, whether one of these queues may be used with acquire; a list that others have extended
        is read again. When a process dies while it replaces the list, the digest is already that of the new one:
        then the list is read again once too often."""
        assert self.is_locked
        if self.page[ACQUIRE_DIGEST] != self.manifest.acquire_digest:
            self.refresh()
            self.page[ACQUIRE_DIGEST] = self.manifest.acquire_digest
        listed = self.manifest.acquire_queues
        return listed is None or (bool(listed) and not set(listed).isdisjoint(queues))

    def list_acquired(self, queues: Collection[str]) -> None:
        """W9: under the lock, before an acquire in one of these queues is appended: their names are in the manifest,
        on disk."""
        assert self.is_locked
        if self.manifest.acquire_queues is not None and set(queues) <= set(self.manifest.acquire_queues):
            return
        self.refresh()
        listed = tuple(sorted({*(self.manifest.acquire_queues or ()), *queues}))
        if listed == self.manifest.acquire_queues:
            return
        self._replace_or_refuse(replace(self.manifest, acquire_queues=listed))

    def _raise_format(self, version: int) -> None:
        """W16: a process that does not know this format refuses the folder from now on; one that has it open already
        refuses the frame."""
        self.refresh()
        if version > self.manifest.format:
            self._replace_or_refuse(replace(self.manifest, format=version))

    def _replace_or_refuse(self, manifest: Manifest) -> None:
        try:
            self.replace_manifest(manifest)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise self.space.reserve_is_used_up() from error

    def adopt(self, snapshot: Snapshot) -> list[str]:
        """Under the lock: the snapshot stands for all before its position. Returns the files no longer needed."""
        assert self.is_locked
        manifest = self.read_manifest()
        if manifest.snapshot is not None and manifest.snapshot.position >= snapshot.position:
            return [snapshot.name]
        gone = [
            segment for segment in manifest.segments if segment.end is not None and segment.end <= snapshot.position
        ]
        left = tuple(segment for segment in manifest.segments if segment not in gone)
        self.replace_manifest(replace(manifest, segments=left, snapshot=snapshot))
        return [segment.name for segment in gone] + ([] if manifest.snapshot is None else [manifest.snapshot.name])
