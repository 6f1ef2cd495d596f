"""What a process does to a log, under the lock, before it relies on it: after a boot, a torn write, a failed sync.

Rules W3, W4 and W5. What must never happen here: a byte changed that a sync may have covered.
"""

from __future__ import annotations

import logging
from typing import Final

from msgspec.structs import replace

from leasemill.errors import Broken, Unavailable
from leasemill.store.file.control import GENERATION, POISONED, SEGMENT, TAIL
from leasemill.store.file.format import (
    SEAL_BYTES,
    SEGMENT_HEADER_BYTES,
    Frame,
    Kind,
    read_frame,
    segment_header,
    whole_frames_behind,
)
from leasemill.store.file.manifest import Segment, read_manifest, segment_name
from leasemill.store.file.space import FOR_REPORTS
from leasemill.store.file.writer import Writer

LOGGER: Final = logging.getLogger("leasemill.wal")
BUILDER_LOCK: Final = "snapshot-lock"


def look_first(log: Writer, *, may_create: bool = False) -> None:
    """Look at the folder first in this boot: find the tail, and wipe what a crash left behind it (W4)."""
    manifest = read_manifest(log.disk)
    if manifest is None and not may_create:
        raise Unavailable(f"the log in {log.disk.where} is gone; put it back, or restart its processes")
    log.manifest = manifest or log.create()
    if log.control.is_current:
        return
    # The page is of an earlier boot, or empty: nobody knows where the log ends. The segments before the last were
    # synced before the last was named (W6), so only that one is read.
    log.go_to(log.manifest.last.first)
    for _ in log.read_new():
        pass
    if log.rest().strip(b"\0"):
        cut_tail(log)  # zeros, then remains
    _remove_strays(log)
    log.disk.sync_folder()
    # Last: a process that dies before this leaves a page that is not current, and the next one does it all again.
    log.control.begin(log.manifest.generation, log.segment.first, log.position)
    log.knows_tail = True


def _remove_strays(log: Writer) -> None:
    named = {BUILDER_LOCK, *(segment.name for segment in log.manifest.segments)}
    if log.manifest.snapshot is not None:
        named.add(log.manifest.snapshot.name)
    for name in log.disk.names():
        if name.endswith(".new") or (name.startswith(("segment-", "snapshot-")) and name not in named):
            log.disk.remove(name)


def cut_tail(log: Writer, *, is_short_of_end: bool = False) -> None:
    """W3: at the log's position no whole frame follows. Behind everything known to be synced that is a torn tail: cut
    and wiped. Before it, or before the end that others wrote, data is damaged: refuse."""
    # Pages reach the disk in any order: after a crash of the machine a gap may be followed by whole frames, of which
    # none was acknowledged. But each frame carries the position up to which its writer knew the log to be synced: if
    # one of them says that the gap was, then the gap was on disk once, and has been damaged since.
    content = log.rest()
    behind = list(whole_frames_behind(content, 1, log.position))
    synced_to = max([log.synced_to, *(frame.synced_to for frame in behind)])
    if is_short_of_end or log.position < synced_to:
        raise Broken(
            f"{log.segment.name} in {log.disk.where} is damaged at byte {log.offset} "
            f"(position {log.position}): the log goes on behind it, so this is not a torn write. "
            "Nothing was changed. Restore the folder from a backup, or look with: leasemill wal verify"
        )
    # Wiped, because a frame is accepted if it lies at its own position: an old one that is left here could be taken for
    # a part of the log once that has grown up to it.
    assert log.file is not None
    left = len(content.rstrip(b"\0"))
    log.file.write(log.offset, bytes(left))
    log.sync_file()
    LOGGER.warning(
        "torn tail cut: %d bytes (%d whole frames) behind position %d of %s were never acknowledged",
        left,
        len(behind),
        log.position,
        log.disk.where,
    )


def rewrite_unsynced(log: Writer) -> None:
    """W5: what follows the last synced position is written again, into a new segment, and synced there. The pages of
    the old one cannot be trusted: the system may report lost ones as clean."""
    log.refresh()
    manifest = log.manifest
    synced_to = max(log.synced_to, manifest.last.first)
    log.go_to(synced_to)
    content = log.rest()
    whole = 0
    while isinstance(frame := read_frame(content, whole, synced_to + whole), Frame) and frame.kind is Kind.EVENTS:
        whole = frame.end - synced_to
    generation = manifest.generation + 1
    try:
        segment = _write_again(log, synced_to, generation, content[:whole])
    except OSError as error:
        raise Unavailable(
            f"the disk under {log.disk.where} still fails ({error.strerror}); check it, then repeat the call"
        ) from error
    # The manifest ends the old segment where the new one begins, so nobody reads on in it. The generation rises, so
    # every process finds that what it has read is superseded, and begins again.
    last = manifest.last
    segments = manifest.segments[:-1]
    if synced_to > last.first:
        segments = (*segments, Segment(last.name, last.first, synced_to))
    log.replace_manifest(replace(manifest, generation=generation, segments=(*segments, segment)))
    # The mark goes last: if this process dies before, the next one under the lock recovers the folder again.
    page = log.page
    page[SEGMENT] = synced_to
    page[TAIL] = synced_to + whole
    page[GENERATION] = generation
    page[POISONED] = 0
    LOGGER.warning(
        "recovered %s from a failed sync: %d bytes after position %d written again",
        log.disk.where,
        whole,
        synced_to,
    )


def _write_again(log: Writer, first: int, generation: int, content: bytes) -> Segment:
    segment = Segment(segment_name(first, generation), first)
    size = max(log.space.report_bytes, SEGMENT_HEADER_BYTES + len(content) + SEAL_BYTES)
    head = segment_header(first) + content
    log.space.from_reserve(lambda: log.disk.create(f"{segment.name}.new", size, head).close(), size, FOR_REPORTS)
    log.disk.rename(f"{segment.name}.new", segment.name)
    log.disk.sync_folder()
    return segment
