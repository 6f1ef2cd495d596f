"""The log's bytes: frames and segment headers. Pure; docs/log-format.md explains each field.

A frame is whole or absent: one checksum covers its header and body. Zeros where a frame would begin are the end of the
log. What must never happen here: accepting bytes that were not written as this frame, at this position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple, cast

import google_crc32c
import msgspec

from leasemill.errors import Broken
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import (
    CLOCK_FORMAT,
    DEATHS_FORMAT,
    KEYS_FORMAT,
    ORDERS_FORMAT,
    PLAIN_FORMAT,
    RULES_FORMAT,
)

FORMATS: Final = (PLAIN_FORMAT, RULES_FORMAT, DEATHS_FORMAT, ORDERS_FORMAT, KEYS_FORMAT, CLOCK_FORMAT)
SEGMENT_MAGIC: Final = b"LEASEMILL LOG\0"
SEGMENT_HEADER: Final = struct.Struct("<14sHQI")
SEGMENT_HEADER_BYTES: Final = 64
FRAME_HEADER: Final = struct.Struct("<2sBcIQQ")
CHECKSUM: Final = struct.Struct("<I")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size + CHECKSUM.size
FRAME_MAGIC: Final = b"LM"
NOTHING: Final = bytes(FRAME_HEADER_BYTES)
LARGEST_BODY: Final = 256 * 1024 * 1024

checksum: Final = cast(Callable[[bytes | msgspec.Raw], int], google_crc32c.value)
_crc_more = cast(Callable[[int, bytes], int], google_crc32c.extend)

encode_events: Final = msgspec.msgpack.Encoder().encode
decode_events: Final = msgspec.msgpack.Decoder(list[AnyEvent]).decode


class Kind(bytes, Enum):
    EVENTS = b"E"
    SEAL = b"S"


class Frame(NamedTuple):
    """One append as it was read; `end` is the position behind it."""

    kind: Kind
    position: int
    synced_to: int
    body: bytes
    end: int

    def events(self) -> list[AnyEvent]:
        try:
            return decode_events(self.body)
        except msgspec.MsgspecError as error:
            raise Broken(
                f"the frame at position {self.position} is whole but holds an event this version does not know "
                f"({error}); a newer Leasemill wrote it: upgrade this process"
            ) from error


def frame_bytes(kind: Kind, position: int, synced_to: int, body: bytes, version: int = PLAIN_FORMAT) -> bytes:
    header = FRAME_HEADER.pack(FRAME_MAGIC, version, kind, len(body), position, synced_to)
    return b"".join((header, CHECKSUM.pack(_crc_more(checksum(header), body)), body))


SEAL_BYTES: Final = FRAME_HEADER_BYTES


class Cut(Enum):
    """Why a reading of frames stopped."""

    END = "end"
    DAMAGE = "damage"
    SHORT = "short"


def read_frame(content: bytes, offset: int, position: int) -> Frame | Cut:
    """The frame at `offset` of `content`, which must be the one for `position`.

    END: zeros instead. SHORT: the content ends within a frame that may be whole. DAMAGE: no such frame can be here.
    """
    start = content[offset : offset + FRAME_HEADER_BYTES]
    if len(start) < FRAME_HEADER_BYTES:
        return Cut.SHORT
    if start == NOTHING:
        return Cut.END
    magic, version, kind, length, at, synced_to = FRAME_HEADER.unpack_from(start)
    if magic != FRAME_MAGIC or at != position or length > LARGEST_BODY or synced_to > position:
        return Cut.DAMAGE
    end = offset + FRAME_HEADER_BYTES + length
    body = content[offset + FRAME_HEADER_BYTES : end]
    if len(body) < length:
        return Cut.SHORT
    (expected,) = CHECKSUM.unpack_from(start, FRAME_HEADER.size)
    if _crc_more(checksum(start[: FRAME_HEADER.size]), body) != expected:
        return Cut.DAMAGE
    if version not in FORMATS:
        raise Broken(
            f"the frame at position {position} has format {version}, this Leasemill reads up to {FORMATS[-1]}: upgrade"
            " this"
        )
    return Frame(Kind(kind), position, synced_to, body, position + FRAME_HEADER_BYTES + length)


def whole_frames_behind(content: bytes, offset: int, first_position: int) -> Iterator[Frame]:
    """Whole frames anywhere behind `offset`, found by their first bytes: what a damaged place may have cut off.

    `first_position` is the position of `content`'s first byte.
    """
    found = content.find(FRAME_MAGIC, offset)
    while found != -1:
        try:
            frame = read_frame(content, found, first_position + found)
        except (Broken, ValueError):
            frame = Cut.DAMAGE
        if isinstance(frame, Frame):
            yield frame
        found = content.find(FRAME_MAGIC, found + 1)


def segment_header(first_position: int) -> bytes:
    fields = SEGMENT_HEADER.pack(SEGMENT_MAGIC, PLAIN_FORMAT, first_position, 0)[: -CHECKSUM.size]
    return (fields + CHECKSUM.pack(checksum(fields))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def check_segment_header(name: str, content: bytes, first_position: int) -> None:
    """Refuse a file that is not the segment it should be."""
    if len(content) < SEGMENT_HEADER.size:
        raise Broken(
            f"{name} is only {len(content)} bytes long, less than its header; restore the folder from a backup"
        )
    magic, version, first, expected = SEGMENT_HEADER.unpack_from(content)
    if magic != SEGMENT_MAGIC:
        raise Broken(f"{name} does not begin like a segment of a Leasemill log; restore the folder from a backup")
    if version not in FORMATS:
        raise Broken(
            f"{name} has format {version}, this Leasemill reads up to {FORMATS[-1]}: upgrade, or open it with the other"
            " version"
        )
    if checksum(content[: SEGMENT_HEADER.size - CHECKSUM.size]) != expected or first != first_position:
        raise Broken(f"the header of {name} is damaged; restore the folder from a backup")
