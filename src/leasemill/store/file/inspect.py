"""Looking at a log without touching it: no lock, no repair, no replica left behind. For `leasemill wal`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

from leasemill.errors import Broken, Invalid
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply
from leasemill.kernel.model import JobState
from leasemill.kernel.read.queues import totals
from leasemill.kernel.state import State
from leasemill.store.file.clock import Machine
from leasemill.store.file.disk import File, RealDisk, holds_log, unavailable
from leasemill.store.file.format import (
    SEGMENT_HEADER_BYTES,
    Cut,
    Frame,
    Kind,
    check_segment_header,
    read_frame,
    whole_frames_behind,
)
from leasemill.store.file.manifest import Manifest, Segment, read_manifest
from leasemill.store.file.snapshot import read_snapshot
from leasemill.store.file.spill.state import SpillingState
from leasemill.store.operations import OnProgress, not_shown

PROGRESS_BYTES: Final = 1024 * 1024


class Damage(Struct, frozen=True):
    """A position at which a whole frame should be and is not."""

    segment: str
    byte: int
    position: int
    is_torn_tail: bool
    what: str


class SegmentFacts(Struct, frozen=True):
    name: str
    first: int
    end: int | None
    frames: int
    events: int
    bytes_used: int


class FolderClock(Struct, frozen=True):
    """The folder's time, and this machine's. `now`: None if no process has used the folder since the machine was
    started; then `latest_at` is the time of the log's last event, None if it has none."""

    now: int | None
    machine: int
    latest_at: int | None = None


class LogFacts(Struct, frozen=True):
    """The content of a folder. `damage` is None, or what stopped the reading."""

    folder: str
    format: int
    generation: int
    snapshot: str | None
    segments: tuple[SegmentFacts, ...]
    events: dict[str, int]
    jobs: dict[JobState, int]
    lanes: int
    queues: int
    bytes_on_disk: int
    violations: tuple[str, ...]
    damage: Damage | None

    @property
    def is_sound(self) -> bool:
        return not self.violations and (self.damage is None or self.damage.is_torn_tail)


class Examiner:
    """Reads one folder's log from its beginning, or from a position, and notes what it meets."""

    def __init__(self, folder: Path) -> None:
        if not holds_log(folder):
            raise Invalid(f"{folder} holds no Leasemill log: name the folder of a file: store")
        self._folder = folder
        try:
            self._disk = RealDisk(folder, may_make=False)
        except OSError as error:
            raise unavailable(folder, error) from error
        try:
            manifest = read_manifest(self._disk)
        except BaseException:
            self._disk.close()
            raise
        assert manifest is not None
        self.manifest: Manifest = manifest
        self.damage: Damage | None = None
        self.segments: list[SegmentFacts] = []

    def close(self) -> None:
        self._disk.close()

    def snapshot_state(self) -> SpillingState:
        """Return the state of the latest snapshot, which the caller closes."""
        snapshot = self.manifest.snapshot
        return SpillingState(self._disk.scratch) if snapshot is None else read_snapshot(self._disk, snapshot)[0]

    def latest_at(self) -> int | None:
        """Return when the last event happened. Reads the whole log."""
        latest_at: int | None = None
        if self.manifest.snapshot is not None:
            state, latest_at = read_snapshot(self._disk, self.manifest.snapshot)
            state.close()
        for frame in self.frames():
            for event in frame.events():
                latest_at = event.at
        return latest_at

    def extent(self) -> tuple[int, int]:
        """Return the positions where the log begins and where its files end: the last may have room behind its tail."""
        last = self.manifest.last
        if last.end is not None:
            return self.manifest.segments[0].first, last.end
        file = self._disk.open(last.name)
        try:
            return self.manifest.segments[0].first, last.first + file.size() - SEGMENT_HEADER_BYTES
        finally:
            file.close()

    def frames(self) -> Iterator[Frame]:
        """Yield every whole frame, segment by segment, up to the tail or to damage."""
        for segment in self.manifest.segments:
            file = self._disk.open(segment.name)
            try:
                yield from self._frames_of(segment, file)
            finally:
                file.close()
            if self.damage is not None:
                return

    def _frames_of(self, segment: Segment, file: File) -> Iterator[Frame]:
        content = file.read(0, file.size())
        check_segment_header(segment.name, content, segment.first)
        origin = segment.first - SEGMENT_HEADER_BYTES
        position, frames, events = segment.first, 0, 0
        while segment.end is None or position < segment.end:
            found = read_frame(content, position - origin, position)
            if not isinstance(found, Frame):
                self._note_cut(segment, content, position, found)
                break
            position = found.end
            frames += 1
            if found.kind is Kind.SEAL:
                break
            events += len(found.events())
            yield found
        self.segments.append(
            SegmentFacts(segment.name, segment.first, segment.end, frames, events, position - segment.first)
        )

    def _note_cut(self, segment: Segment, content: bytes, position: int, cut: Cut) -> None:
        byte = position - segment.first + SEGMENT_HEADER_BYTES
        rest = content[byte:].rstrip(b"\0")
        if segment.end is None and not rest:
            return
        origin = segment.first - SEGMENT_HEADER_BYTES
        behind = list(whole_frames_behind(content, byte + 1, origin))
        is_torn = segment.end is None and all(frame.synced_to <= position for frame in behind)
        what = f"{len(rest):,} bytes that are not a frame" if cut is not Cut.END else "zeros where a frame should be"
        if behind:
            what += f", {len(behind)} whole frames behind them"
        self.damage = Damage(segment.name, byte, position, is_torn, what)


def examine(folder: Path, on_progress: OnProgress = not_shown) -> LogFacts:
    """Read and replay everything; changes nothing. `on_progress`: in bytes of the log."""
    with closing(Examiner(folder)) as examiner, closing(examiner.snapshot_state()) as state:
        events: Counter[str] = Counter()
        broken: list[str] = []
        snapshot = examiner.manifest.snapshot
        first, last = examiner.extent()
        shown_at = first
        for frame in examiner.frames():
            if frame.position >= shown_at:
                on_progress(frame.position - first, last - first)
                shown_at = frame.position + PROGRESS_BYTES
            for event in frame.events():
                events[type(event).__name__] += 1
                if not broken and (snapshot is None or frame.position >= snapshot.position):
                    broken += _apply(state, event, frame)
        counted = totals(state)
        return LogFacts(
            str(folder),
            examiner.manifest.format,
            examiner.manifest.generation,
            None if snapshot is None else snapshot.name,
            tuple(examiner.segments),
            dict(sorted(events.items())),
            counted.counts,
            len(state.lanes),
            len(state.queues),
            sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file()),
            tuple(broken or violations(state)),
            examiner.damage,
        )


def read_clock(folder: Path, machine: Machine) -> FolderClock:
    """Compare the clocks; changes nothing, unlike a process that opens the folder (W10, W17)."""
    with closing(Examiner(folder)) as examiner:
        clock, wall = examiner.manifest.clock, machine.wall_us()
        if clock.boot_id != machine.boot_id():
            return FolderClock(None, wall, examiner.latest_at())
        return FolderClock(machine.since_boot_ns() // 1_000 + clock.offset_us, wall)


def _apply(state: State, event: AnyEvent, frame: Frame) -> list[str]:
    try:
        apply(state, event)
    except Broken as error:
        return [f"position {frame.position}: {error}"]
    return []
