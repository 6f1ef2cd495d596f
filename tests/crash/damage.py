"""Logs that are torn and damaged in every way, and a plain reading of the format that decides what must come of it.

The reading here shares no code with the store: fields by their offsets in docs/log-format.md, one checksum.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import google_crc32c

from leasemill.errors import Broken
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.machine import apply
from leasemill.kernel.model import JobSpec
from leasemill.kernel.state import PLAIN_FORMAT
from leasemill.store.file.format import decode_events
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from tests.crash.lab import digest_of, log_of, open_simulated, snapshot, state_of
from tests.crash.walk import Model, Walk, asked
from tests.lab.faults import SimulatedMachine

HEADER = 64
MAGICS = (b"LM\x01", b"LM\x02", b"LM\x03")
CHECKED_HEADER = 28
FRAME = 28
SEGMENT_BYTES = 36 * 1024
FOLDER_SEGMENT_BYTES = 8 * 1024
UNSYNCED_FRAMES = 20


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole frame, where it lies in its segment's content."""

    offset: int
    synced_to: int
    body: bytes
    version: int

    @property
    def end(self) -> int:
        return self.offset + FRAME + len(self.body)


def crc(content: bytes) -> int:
    value: int = google_crc32c.value(content)
    return value


def whole_at(content: bytes, offset: int, first: int) -> Whole | None:
    """The whole frame at an offset, at the position in its header."""
    head = content[offset : offset + FRAME]
    if len(head) < FRAME or head[:3] not in MAGICS:
        return None
    length, position, synced_to, check = struct.unpack_from("<IQQI", head, 4)
    body = content[offset + FRAME : offset + FRAME + length]
    if position != first + offset - HEADER or len(body) < length or crc(head[:24] + body) != check:
        return None
    return Whole(offset, synced_to, body, head[2])


def chain(content: bytes, first: int) -> Iterator[Whole]:
    """The whole frames from the beginning on, without a gap."""
    offset = HEADER
    while (frame := whole_at(content, offset, first)) is not None:
        yield frame
        offset = frame.end


def anywhere(content: bytes, first: int) -> Iterator[Whole]:
    found = content.find(b"LM", HEADER)
    while found != -1:
        if (frame := whole_at(content, found, first)) is not None:
            yield frame
        found = content.find(b"LM", found + 1)


def framed(position: int, synced_to: int, body: bytes, version: int) -> bytes:
    head = b"LM%cE" % version + struct.pack("<IQQ", len(body), position, synced_to)
    return head + struct.pack("<I", crc(head + body)) + body


# A log of one segment, torn --------------------------------------------------------------------------------------


class Behind(Enum):
    """What lies behind the torn end."""

    ZEROS = "zeros"
    GARBAGE = "garbage"
    OLD = "old bytes"
    NOTHING = "nothing: the file ends"


class TornLog:
    """A log of many events in one segment, and the state after each of its frames."""

    def __init__(self, folder: Path, *, events: int = 400, seed: int = 1) -> None:
        self._folder = folder
        self.machine = SimulatedMachine()
        clock, source = ManualClock(), random.Random(seed)
        with open_simulated(self.machine, folder, clock, segment_bytes=SEGMENT_BYTES) as store:
            write_walk(store, clock, events, Walk(source, payload_bytes=(0, 3)), source)
        self.name = next(name for name in self.machine.files() if name.startswith("segment-"))
        self.content = self.machine.files()[self.name]
        self.frames = list(chain(self.content, 0))
        self.end = self.frames[-1].end
        self.events = sum(len(decode_events(frame.body)) for frame in self.frames)
        self.models = states_after(Model(), self.frames)
        self.digests = [model.boot().digest() for model in self.models]

    def offsets(self) -> range:
        return range(HEADER, self.end + 1)

    def borders(self) -> Iterator[int]:
        """Offsets around the ends of frames and of their headers."""
        for frame in self.frames:
            yield from (frame.offset, frame.offset + 1, frame.offset + FRAME - 1, frame.offset + FRAME, frame.end - 1)

    def check(self, offset: int, behind: Behind) -> None:
        """Torn at this offset, the log gives the state of the longest whole prefix; then it goes on."""
        what = f"torn at {offset}, behind it {behind.value}"
        content = self._torn(offset, behind)
        whole = len(list(chain(content, 0)))
        torn = self.machine.copy()
        torn.put(self.name, content)
        clock = ManualClock(self.models[whole].latest_at + 1)
        store = open_simulated(torn, self._folder, clock, segment_bytes=SEGMENT_BYTES)
        expect(digest_of(store), self.digests[whole], what)
        store.enqueue([JobSpec("one more", "q", "k")])
        going_on = digest_of(store)
        if store.job("one more") is None:
            raise AssertionError(f"{what}: it cannot be appended to")
        store.close()
        again = open_simulated(torn.copy(), self._folder, clock, segment_bytes=SEGMENT_BYTES)
        expect(digest_of(again), going_on, f"{what}, then appended to and reopened")

    def _torn(self, offset: int, behind: Behind) -> bytes:
        kept = self.content[:offset]
        if behind is Behind.NOTHING:
            return kept
        rest = b""
        if behind is Behind.GARBAGE:
            rest = random.Random(offset).randbytes(min(3_000, len(self.content) - offset))
        elif behind is Behind.OLD:
            whole = sum(frame.end <= offset for frame in self.frames)
            torn_to = self.frames[whole].end if whole < len(self.frames) else offset
            rest = bytes(torn_to - offset) + self._lost_writes(whole)[torn_to:]
        return (kept + rest).ljust(len(self.content), b"\0")

    def _lost_writes(self, whole: int) -> bytes:
        """The log as if all behind the first frames had been written, and not synced, before the crash."""
        synced_to = self.frames[whole].offset - HEADER if whole < len(self.frames) else self.end - HEADER
        written = bytearray(self.content)
        for frame in self.frames[whole:]:
            written[frame.offset : frame.end] = framed(frame.offset - HEADER, synced_to, frame.body, frame.version)
        return bytes(written)


def write_walk(store: FileStore, clock: ManualClock, events: int, walk: Walk, source: random.Random) -> None:
    """Random commands until that many events were appended."""
    count = 0
    log = log_of(store)
    append = log.append

    def counting(events: Sequence[AnyEvent], version: int = PLAIN_FORMAT, *, may_use_reserve: bool = True) -> int:
        nonlocal count
        count += len(events)
        return append(events, version, may_use_reserve=may_use_reserve)

    log.append = counting  # type: ignore[method-assign]
    while count < events:
        asked(store, walk.next(state_of(store)))
        clock.advance(us=source.choice((0, 1_000, 400_000)))
    log.append = append  # type: ignore[method-assign]


def states_after(model: Model, frames: Sequence[Whole]) -> list[Model]:
    """The state before the first frame, after the first, after the second, …"""
    states = [model.copy()]
    for frame in frames:
        for event in decode_events(frame.body):
            apply(model.state, event)
            model.latest_at = event.at
        states.append(model.copy())
    return states


def expect(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: the state is another than it should be")


# A folder of several files, damaged ------------------------------------------------------------------------------


class Damage(Enum):
    FLIP = "a bit flipped"
    DROP = "a frame dropped"
    DOUBLE = "a frame doubled"
    SWAP = "two frames swapped"


class DamagedFolder:
    """A snapshot, a sealed segment it does not cover, and a last segment whose final frames were not synced."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._folder = folder
        self._clock = ManualClock()
        self.machine = SimulatedMachine()
        source = random.Random(seed)
        walk = Walk(source)
        with self._opened(self.machine) as store:
            write_walk(store, self._clock, 150, walk, source)
            while snapshot(self.machine, folder, segment_bytes=FOLDER_SEGMENT_BYTES) is None:
                write_walk(store, self._clock, 10, walk, source)
            self._look()
            while not self.sealed or len(self._frames_of(self.last)) < UNSYNCED_FRAMES + 10:
                write_walk(store, self._clock, 10, walk, source)
                self._look()
        self._unsync_the_end()
        self.files = self.machine.files()
        self.frames = list(chain(self.files[self.last], self.first))
        self.tail = self.frames[-1].end
        base = self._base()
        self.models = states_after(base, self.frames)
        self.digests = [model.boot().digest() for model in self.models]
        opened = self.models[-1].copy()
        opened.settle(self._clock.now())
        self.same_boot_digest = opened.digest()

    def _look(self) -> None:
        """Which files the manifest lists."""
        self.files = self.machine.files()
        listed = json.loads(self.files["manifest"].partition(b"\n")[2])
        self.snapshot = str(listed["snapshot"]["name"])
        self.sealed: list[tuple[str, int, int]] = [
            (one["name"], one["first"], one["end"]) for one in listed["segments"][:-1]
        ]
        self.last: str = listed["segments"][-1]["name"]
        self.first: int = listed["segments"][-1]["first"]

    def damaged(self, source: random.Random) -> tuple[str, bytes, str]:
        """A file's name, its content damaged, and how."""
        name = source.choice((self.last, self.last, self.last, self.sealed[-1][0], self.snapshot, "manifest"))
        content = self.files[name]
        damage = source.choice(list(Damage))
        frames = self._frames_of(name)
        if damage is Damage.FLIP or len(frames) < 3:
            return name, flipped(content, source, self._end_of(name)), Damage.FLIP.value
        index = source.randrange(len(frames) - 1)
        one, two = frames[index], frames[index + 1]
        pieces = {
            Damage.DROP: content[: one.offset] + content[one.end :],
            Damage.DOUBLE: content[: one.end] + content[one.offset :],
            Damage.SWAP: (
                content[: one.offset]
                + content[two.offset : two.end]
                + content[one.offset : one.end]
                + content[two.end :]
            ),
        }
        changed = pieces[damage]
        if name != self.snapshot:
            changed = changed[: len(content)].ljust(len(content), b"\0")
        return name, changed, damage.value

    def expected(self, name: str, content: bytes, *, same_boot: bool) -> str | None:
        """The digest that opening must find; None: it must be refused (W3)."""
        if content == self.files[name]:
            return self.same_boot_digest if same_boot else self.digests[-1]
        if name in ("manifest", self.snapshot):
            return None
        if content[:CHECKED_HEADER] != self.files[name][:CHECKED_HEADER]:
            return None
        for sealed, first, end in self.sealed:
            if name == sealed:
                counts = slice(HEADER, HEADER + end - first)
                is_sound = content[counts] == self.files[name][counts]
                return (self.same_boot_digest if same_boot else self.digests[-1]) if is_sound else None
        frames = list(chain(content, self.first))
        whole_to = frames[-1].end if frames else HEADER
        if same_boot:
            return self.same_boot_digest if whole_to >= self.tail else None
        seen = max((frame.synced_to for frame in anywhere(content, self.first)), default=0)
        if self.first + whole_to - HEADER < seen:
            return None
        return self.digests[len(frames)]

    def check(self, seed: int) -> str:
        """One damage; answers what came of it."""
        source = random.Random(seed)
        name, content, how = self.damaged(source)
        same_boot = source.random() < 0.3
        machine = self.machine.copy(reboots=not same_boot)
        machine.put(name, content)
        expected = self.expected(name, content, same_boot=same_boot)
        before = machine.files()
        try:
            found = digest_of(self._opened(machine))
        except Broken:
            if expected is not None:
                raise AssertionError(f"seed {seed}: {how} in {name} was refused, it is a torn tail") from None
            if any(machine.files().get(one) != content for one, content in before.items()):
                raise AssertionError(f"seed {seed}: refused, and yet changed") from None
            return "refused"
        if expected is None:
            raise AssertionError(f"seed {seed}: {how} in {name} was not refused")
        expect(found, expected, f"seed {seed}: {how} in {name}")
        whole = self.same_boot_digest if same_boot else self.digests[-1]
        return "nothing lost" if found == whole else "tail cut"

    def _opened(self, machine: SimulatedMachine) -> FileStore:
        return open_simulated(machine, self._folder, self._clock, segment_bytes=FOLDER_SEGMENT_BYTES)

    def _base(self) -> Model:
        """The state where the last segment begins."""
        twin = self.machine.copy(reboots=False)
        content = bytearray(self.files[self.last])
        content[HEADER:] = bytes(len(content) - HEADER)
        twin.put(self.last, bytes(content))
        twin._control[:] = bytes(len(twin._control))
        # at an early time: what has expired since is in the last segment, and opening would record it (W15)
        store = open_simulated(twin, self._folder, ManualClock(), segment_bytes=FOLDER_SEGMENT_BYTES)
        model = Model()
        model.state = state_of(store)
        model.latest_at = store._replica.latest_at
        return model.copy()

    def _unsync_the_end(self) -> None:
        """Of the last frames none was synced when the next was written: another process was about to."""
        content = bytearray(self.machine.files()[self.last])
        frames = list(chain(bytes(content), self.first))
        for frame in frames[-UNSYNCED_FRAMES:]:
            position = self.first + frame.offset - HEADER
            content[frame.offset : frame.end] = framed(
                position, self.first + frames[-UNSYNCED_FRAMES].offset - HEADER, frame.body, frame.version
            )
        self.machine.put(self.last, bytes(content))

    def _frames_of(self, name: str) -> list[Whole]:
        if name == "manifest":
            return []
        if name == self.snapshot:
            return list(_snapshot_frames(self.files[name]))
        first = next((first for one, first, _ in self.sealed if one == name), self.first)
        return list(chain(self.files[name], first))

    def _end_of(self, name: str) -> int:
        frames = self._frames_of(name)
        return min(len(self.files[name]), frames[-1].end + 200) if frames else len(self.files[name])


def _snapshot_frames(content: bytes) -> Iterator[Whole]:
    offset = 0
    while (frame := whole_at(content, offset, HEADER)) is not None:
        yield frame
        offset = frame.end


def flipped(content: bytes, source: random.Random, end: int) -> bytes:
    changed = bytearray(content)
    changed[source.randrange(end)] ^= 1 << source.randrange(8)
    return bytes(changed)
