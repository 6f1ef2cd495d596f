"""Where workers publish that they are running: one small record each. Soft state, never in the log, safe to lose."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote, unquote

from msgspec import MsgspecError, Struct, json

from leasemill.errors import Unavailable
from leasemill.kernel.model import WorkerOrder

WORKERS: Final = "workers"
RECORD: Final = ".worker"
LONGEST_NAME: Final = 200  # of 255 bytes, with room for what is written beside it
DIGEST: Final = "="  # begins no quoted id
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def new_worker_id() -> str:
    """Draw an id that shows people where to look: host, process, and a part that no other worker has."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


class Present(NamedTuple):
    """A worker's record, and how long ago it was published: by the store's clock, for a worker's decides nothing."""

    worker_id: str
    content: bytes
    age_s: float


class Presence(Protocol):
    """A place for workers' records. Called from threads, never from an event loop."""

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        """Replace this worker's record; returns the latest order to the instance that the record names (O13)."""

    def records(self) -> list[Present]:
        """List every record by worker id; whole ones only."""

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        """Forget a worker; False if it was not there (any more). `instance`: leave the record of any other."""


class _Instance(Struct, frozen=True):
    """The one field of a record that a store reads."""

    instance: str = ""


_decode_instance = json.Decoder(_Instance).decode
OrderOf: TypeAlias = Callable[[str], WorkerOrder | None]
"""Reads the latest order to an instance."""


def instance_of(record: bytes) -> str:
    """Return the instance that a record names; empty if the record is of another version, or not a record."""
    try:
        return _decode_instance(record).instance
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _no_order(_instance: str) -> None:
    return None


def _no_room() -> bool:
    return False


class MemoryPresence:
    """The records of the workers of this process."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, order_of: OrderOf = _no_order) -> None:
        self._monotonic = monotonic
        self._order_of = order_of
        self._lock = threading.Lock()
        self._records: dict[str, tuple[bytes, float]] = {}

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        with self._lock:
            self._records[worker_id] = record, self._monotonic()
        return self._order_of(instance_of(record))

    def records(self) -> list[Present]:
        with self._lock:
            now = self._monotonic()
            return [Present(worker_id, record, now - at) for worker_id, (record, at) in sorted(self._records.items())]

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        with self._lock:
            record, _ = self._records.get(worker_id, (None, 0.0))
            if record is None or (instance is not None and instance_of(record) != instance):
                return False
            del self._records[worker_id]
            return True


class FolderPresence:
    """A file for each worker, in a folder of its own; written beside and renamed, never synced.

    A file is the time since the machine's boot, in microseconds, a newline, and the record. It is named by the worker's
    id; where that is too long for a file name, by its digest, and the id has a line before the record. `make_room` is
    called on a full disk, and returns whether it has freed a block.
    """

    def __init__(
        self,
        path: Path,
        since_boot_us: Callable[[], int],
        order_of: OrderOf = _no_order,
        make_room: Callable[[], bool] = _no_room,
    ) -> None:
        self._path = path / WORKERS
        self._since_boot_us = since_boot_us
        self._order_of = order_of
        self._make_room = make_room

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        self._write(worker_id, record)
        return self._order_of(instance_of(record))

    def _write(self, worker_id: str, record: bytes) -> None:
        path = self._file(worker_id)
        beside = path.with_name(f"{path.name}-{os.getpid()}")
        if path.name.startswith(DIGEST):
            record = b"%b\n%b" % (quote(worker_id, safe="").encode(), record)
        content = b"%d\n%b" % (self._since_boot_us(), record)
        while True:
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                beside.write_bytes(content)
                beside.replace(path)
            except OSError as error:
                beside.unlink(missing_ok=True)
                if error.errno not in NO_SPACE:
                    raise
                if not self._make_room():
                    raise Unavailable(f"no space left for the record of worker {worker_id} in {self._path}") from error
            else:
                return

    def records(self) -> list[Present]:
        found: list[Present] = []
        try:
            paths = [path for path in self._path.iterdir() if path.name.endswith(RECORD)]
        except FileNotFoundError:
            return []
        for path in paths:
            try:
                worker_id, published, record = _read(path.name, path.read_bytes())
            except FileNotFoundError:
                continue  # removed meanwhile
            if published.isdigit():  # else of another version
                found.append(Present(worker_id, record, self._age_s(int(published))))
        return sorted(found)

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        """Remove a record. It is renamed first: what is looked at is what is removed, whoever publishes meanwhile."""
        path = self._file(worker_id)
        aside = path.with_name(f"{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        _, _, record = _read(path.name, aside.read_bytes())
        is_removed = instance is None or instance_of(record) == instance
        try:
            if not is_removed:
                os.link(aside, path)
        except FileExistsError:
            pass  # it has published again
        except OSError:
            aside.replace(path)  # a file system without links: rather an older record than none
            return False
        aside.unlink()
        return is_removed

    def _age_s(self, published_us: int) -> float:
        now_us = self._since_boot_us()
        is_of_an_earlier_boot = published_us > now_us
        return (now_us if is_of_an_earlier_boot else now_us - published_us) / 1_000_000

    def _file(self, worker_id: str) -> Path:
        name = quote(worker_id, safe="")
        if len(name) > LONGEST_NAME:
            name = DIGEST + blake2b(worker_id.encode(), digest_size=16).hexdigest()
        return self._path / (name + RECORD)


def _read(name: str, content: bytes) -> tuple[str, bytes, bytes]:
    """Split a file's content into the worker's id, the time of publication and the record."""
    published, _, record = content.partition(b"\n")
    quoted = name.removesuffix(RECORD)
    if quoted.startswith(DIGEST):
        line, _, record = record.partition(b"\n")
        quoted = line.decode()
    return unquote(quoted), published, record
