"""The keys of a folder: one file of mode 0600, written beside and renamed under a lock of its own.

Not part of the log: keys are no jobs, and a copy of the log that is sent to somebody has none. A reader takes no lock.
What must never happen here: a file that others can read or write, or a revocation that a power cut undoes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from leasemill.errors import Broken, Refused
from leasemill.store.access_keys import AccessKey, in_order, revoked, used_at, with_added
from leasemill.store.file.disk import sync_descriptor, unavailable

NAME: Final = "keys"
LOCK: Final = "keys.lock"
BESIDE: Final = "keys.new"
FORMAT: Final = 1
OF_OTHERS: Final = 0o077


class StoredKeys(msgspec.Struct, frozen=True):
    """What the file holds."""

    format: int
    keys: list[AccessKey]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredKeys).decode


class FolderKeys:
    """Keys of a folder. Threads and processes may use it at once; no descriptor is kept open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def version(self) -> str:
        """The file's identity: each change makes another file."""
        try:
            found = (self._path / NAME).stat()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise unavailable(self._path / NAME, error) from error
        return f"{found.st_ino}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_size}"

    def all(self) -> list[AccessKey]:
        return in_order(self._read().values())

    def add(self, key: AccessKey) -> None:
        self._change(lambda keys: with_added(keys, key))

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        def change(keys: dict[str, AccessKey]) -> dict[str, AccessKey]:
            return {**keys, key_id: revoked(keys[key_id], at, by)} if key_id in keys else keys

        return self._change(change).get(key_id)

    def use(self, used: Mapping[str, int]) -> None:
        def change(keys: dict[str, AccessKey]) -> dict[str, AccessKey]:
            return {**keys, **{one: used_at(keys[one], at) for one, at in used.items() if one in keys}}

        self._change(change)

    def _change(self, change: Callable[[dict[str, AccessKey]], dict[str, AccessKey]]) -> dict[str, AccessKey]:
        try:
            with self._locked():
                before = self._read()
                after = change(before)
                if after != before:
                    self._write(after)
                return after
        except OSError as error:
            raise unavailable(self._path / NAME, error) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for a moment, and gone with its holder: closing the descriptor unlocks."""
        fd = os.open(self._path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> dict[str, AccessKey]:
        path = self._path / NAME
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "rb") as file:
                mode, content = os.fstat(fd).st_mode & 0o777, file.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unavailable(path, error) from error
        if mode & OF_OTHERS:
            raise Refused(f"{path} has mode {mode:04o}, others can reach it: chmod 600 it, and check who has keys")
        try:
            stored = _decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Broken(f"{path} is damaged ({error}): put back a copy, or remove it and create new keys") from None
        if stored.format != FORMAT:
            raise Broken(f"{path} has format {stored.format}, this Leasemill knows {FORMAT}: use a later version")
        return {key.id: key for key in stored.keys}

    def _write(self, keys: dict[str, AccessKey]) -> None:
        beside = self._path / BESIDE
        beside.unlink(missing_ok=True)  # of a writer that was killed
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(_encode(StoredKeys(FORMAT, in_order(keys.values()))))
            file.flush()
            sync_descriptor(fd)
        beside.replace(self._path / NAME)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_descriptor(folder)
        finally:
            os.close(folder)
