"""Which files make the log: replaced whole, by a rename, so that it is always one thing or the other."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from leasemill.errors import Broken
from leasemill.store.file.disk import Disk
from leasemill.store.file.folder import MANIFEST_NAME
from leasemill.store.file.format import FORMATS, checksum


class Segment(Struct, frozen=True):
    """A file of the log: positions `first` up to `end`; the last one has no end yet."""

    name: str
    first: int
    end: int | None = None


class Snapshot(Struct, frozen=True):
    """The file that holds the state as it was at a position."""

    name: str
    position: int


TO_BE_SET: Final = "set:"
"""The prefix of a boot's identity when its clock is to be set: no boot has such an identity, so the clock is unused."""


class BootClock(Struct, frozen=True):
    """In this boot of the machine, the store's time is the boot clock plus `offset_us`."""

    boot_id: str
    offset_us: int

    def is_to_be_set(self, boot_id: str) -> bool:
        """Whether the first process that decides something sets the clock (W17); in another boot, as after any boot."""
        return self.boot_id == TO_BE_SET + boot_id


class Manifest(Struct, frozen=True):
    """`generation` rises when anything already read may have changed: whoever read it begins again.

    `format` rises when an event first holds what earlier versions do not know (W16). `acquire_queues` names every queue
    that may be used with acquire; None: no version listed them yet.
    """

    format: int
    generation: int
    clock: BootClock
    segments: tuple[Segment, ...]
    snapshot: Snapshot | None = None
    acquire_queues: tuple[str, ...] | None = None

    @property
    def last(self) -> Segment:
        return self.segments[-1]

    @property
    def acquire_digest(self) -> int:
        """A number that differs when the list of acquire queues does."""
        return _digest(self.acquire_queues)


@lru_cache(maxsize=16)
def _digest(names: tuple[str, ...] | None) -> int:
    return int.from_bytes(blake2b(msgspec.json.encode(names), digest_size=8).digest(), "little")


def segment_name(first: int, generation: int) -> str:
    return f"segment-{first:016x}-{generation}"


def read_manifest(disk: Disk) -> Manifest | None:
    """Read the folder's manifest; None for a folder that has none yet."""
    try:
        file = disk.open(MANIFEST_NAME)
    except FileNotFoundError:
        return None
    try:
        content = file.read(0, file.size())
    finally:
        file.close()
    head, _, body = content.partition(b"\n")
    if head != f"{checksum(body):08x}".encode():
        raise Broken(f"the manifest of {disk.where} is damaged; restore the folder from a backup")
    version = msgspec.json.decode(body)["format"]
    if version not in FORMATS:
        raise Broken(
            f"the log in {disk.where} has format {version}, this Leasemill reads up to {FORMATS[-1]}: "
            "upgrade, or open it with the version that wrote it"
        )
    return msgspec.json.decode(body, type=Manifest)


def manifest_content(manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    return f"{checksum(body):08x}\n".encode() + body


def write_manifest(disk: Disk, content: bytes) -> None:
    """Write and sync a manifest beside the one that counts."""
    disk.create(f"{MANIFEST_NAME}.new", len(content), content).close()


def adopt_manifest(disk: Disk) -> None:
    """Make the manifest that was written the one that counts: rename it, and sync the rename."""
    disk.rename(f"{MANIFEST_NAME}.new", MANIFEST_NAME)
    disk.sync_folder()
