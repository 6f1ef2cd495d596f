"""The operating system, as the log needs it: files, the folder, the lock, the control page.

A protocol and its real form; tests put a disk underneath that fails, forgets and crashes. Every call here may raise
OSError; what that means is the log's business.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leasemill.errors import Unavailable
from leasemill.store.file.folder import LOCK_NAME, MANIFEST_NAME, make_folder, refuse_network_file_system
from leasemill.store.system import out_of_descriptors

LOCK_AT_ONCE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
CONTROL_BYTES: Final = 4096
FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)  # macOS has it, Linux does not need it
ZEROS: Final = bytes(1024 * 1024)
MOST_TRIES: Final = 12
"""To take the lock, before the first pause: where processes only enqueue it is held for some 20 µs, and the shortest
pause takes 70. Where it is held for longer, half as many each time."""
STAT_BLOCK_BYTES: Final = 512
NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
FIRST_PAUSE_S: Final = 0.000_02
LONGEST_PAUSE_S: Final = 0.001


_let_others_run: Final[Callable[[], None]] = getattr(os, "sched_yield", partial(time.sleep, 0))


def sync_descriptor(fd: int) -> None:
    """Return when what was written is on the disk itself. On macOS fsync leaves it in the drive's cache."""
    if FULL_SYNC is not None:
        fcntl.fcntl(fd, FULL_SYNC)
    else:
        os.fsync(fd)


def _data_sync(fd: int) -> Callable[[], None]:
    """Do the same for what was written into a file whose size stays."""
    return partial(os.fdatasync, fd) if FULL_SYNC is None else partial(sync_descriptor, fd)


class File(Protocol):
    """An open file."""

    def read(self, offset: int, length: int) -> bytes: ...
    def write(self, offset: int, content: bytes) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A folder, its lock, and a page of memory that all its processes share."""

    @property
    def where(self) -> str: ...
    @property
    def identity(self) -> str:
        """A text that distinguishes the lock file from its copies."""
        ...

    @property
    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened."""
        ...

    @property
    def control(self) -> memoryview: ...
    def lock(self, timeout_s: float) -> None: ...
    def unlock(self) -> None: ...
    def open(self, name: str) -> File: ...
    def create(self, name: str, size: int, head: bytes = b"") -> File:
        """Create a file of zeros behind `head`, synced; it replaces one of that name. Leaves nothing if it fails."""
        ...

    def scratch(self) -> File:
        """Create an empty file without a name, which is gone when it is closed."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def sync_folder(self) -> None: ...
    def names(self) -> list[str]: ...
    def size(self, name: str) -> int:
        """Return a file's size in bytes; 0 if there is no such file."""
        ...

    def allocate(self, name: str, size: int) -> None:
        """Give a file at least this size, with blocks of the file system behind all of it; its content does not
        matter. It stays as it was if there is no room."""
        ...

    def shrink(self, name: str, size: int) -> None:
        """Return to the file system what a file has beyond this size."""
        ...

    @property
    def free_bytes(self) -> int:
        """Return how many bytes the file system still has for this user."""
        ...

    def close(self) -> None: ...


class RealFile:
    """`sync` is the system's own call: each enqueue waits for one."""

    __slots__ = ("_fd", "sync")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.sync: Callable[[], None] = _data_sync(fd)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def write(self, offset: int, content: bytes) -> None:
        written = os.pwrite(self._fd, content, offset)
        while written < len(content):
            more = os.pwrite(self._fd, content[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "a write wrote nothing")
            written += more

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd, self.sync = self._fd, -1, _data_sync(-1)
            os.close(fd)


class RealDisk:
    """A folder of the file system. The lock file is made once and never renamed or removed."""

    def __init__(self, path: Path, *, may_make: bool = True) -> None:
        self._path = path
        self._tries = MOST_TRIES
        with ExitStack() as opened:
            if may_make:
                for changed in make_folder(path):
                    _sync_folder(changed)
            refuse_network_file_system(path)
            self._lock_fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, self._lock_fd)
            found = os.fstat(self._lock_fd)
            if found.st_blocks == 0:
                # A store to a mapped page without a block ends the process (SIGBUS) when the disk is full.
                _allocate_blocks(self._lock_fd, CONTROL_BYTES)
            self._lock_path = str(path / LOCK_NAME)
            self._lock_dev, self._lock_ino = found.st_dev, found.st_ino
            self._folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, self._folder_fd)
            self._map = mmap.mmap(self._lock_fd, CONTROL_BYTES)
            self._control = memoryview(self._map)
            opened.pop_all()
        self.unlock: Callable[[], None] = partial(fcntl.flock, self._lock_fd, fcntl.LOCK_UN)

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def is_there(self) -> bool:
        try:
            self._require_folder()
        except (OSError, Unavailable):
            return False
        return True

    @property
    def identity(self) -> str:
        return f"{self._lock_dev}:{self._lock_ino}"

    @property
    def control(self) -> memoryview:
        return self._control

    def lock(self, timeout_s: float) -> None:
        """Take the folder's lock; TimeoutError if another holds it that long. Whether the folder is still there is
        looked at before it is held, and again after a pause."""
        self._require_folder()
        if not self._takes_lock():
            self._wait_for_lock(timeout_s)

    def _require_folder(self) -> None:
        """Refuse a folder that was replaced. It is one system call, which each batch makes."""
        try:
            found = os.stat(self._lock_path)  # noqa: PTH116  (a Path would take twice as long)
        except FileNotFoundError:
            found = None
        if found is None or found.st_ino != self._lock_ino or found.st_dev != self._lock_dev:
            raise Unavailable(f"the folder {self._path} was removed or replaced while it was in use; put it back")

    def _wait_for_lock(self, timeout_s: float) -> None:
        for _ in range(self._tries):
            _let_others_run()
            if self._takes_lock():
                self._tries = MOST_TRIES
                return
        self._tries = max(1, self._tries // 2)
        pause_s, waited_until = FIRST_PAUSE_S, time.monotonic() + timeout_s
        while time.monotonic() < waited_until:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            self._require_folder()
            if self._takes_lock():
                return
        raise TimeoutError

    def _takes_lock(self) -> bool:
        try:
            fcntl.flock(self._lock_fd, LOCK_AT_ONCE)
        except BlockingIOError:
            return False
        return True

    def open(self, name: str) -> File:
        return RealFile(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC))

    def create(self, name: str, size: int, head: bytes = b"") -> File:
        path = self._path / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        file = RealFile(fd)
        try:
            file.write(0, head)
            for offset in range(len(head), size, len(ZEROS)):
                file.write(offset, ZEROS[: size - offset])
            sync_descriptor(fd)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise
        return file

    def scratch(self) -> File:
        fd, name = tempfile.mkstemp(prefix="scratch-", suffix=".new", dir=self._path)
        Path(name).unlink()
        return RealFile(fd)

    def rename(self, old: str, new: str) -> None:
        (self._path / old).rename(self._path / new)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def sync_folder(self) -> None:
        sync_descriptor(self._folder_fd)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self._path.iterdir())

    def size(self, name: str) -> int:
        try:
            return (self._path / name).stat().st_size
        except FileNotFoundError:
            return 0

    def allocate(self, name: str, size: int) -> None:
        fd = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            had = os.fstat(fd)
            if had.st_size >= size and had.st_blocks * STAT_BLOCK_BYTES >= size:
                return
            try:
                _allocate_blocks(fd, size)
            except OSError:
                if os.fstat(fd).st_size > had.st_size:
                    os.ftruncate(fd, had.st_size)
                raise
        finally:
            os.close(fd)

    def shrink(self, name: str, size: int) -> None:
        os.truncate(self._path / name, size)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self._path)  # not by a descriptor: a thread may ask while the store is closed
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Close without unlocking: the lock goes with the last descriptor, and a forked child's must not free it."""
        if self._lock_fd < 0:
            return
        self._control.release()
        self._map.close()
        os.close(self._folder_fd)
        os.close(self._lock_fd)
        self._lock_fd = -1
        self.unlock = _is_unlocked


def _allocate_blocks(fd: int, size: int) -> None:
    """A file of at least this size that has its blocks. Where the system has no call for it, what is missing is
    written."""
    try:
        os.posix_fallocate(fd, 0, size)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in NOT_SUPPORTED:
            raise
    else:
        return
    for offset in range(os.fstat(fd).st_size, size, len(ZEROS)):
        os.pwrite(fd, ZEROS[: size - offset], offset)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_descriptor(fd)
    finally:
        os.close(fd)


def _is_unlocked() -> None:
    """Closing the lock file has freed it."""


def holds_log(path: Path) -> bool:
    """Whether the folder has a log."""
    try:
        return stat.S_ISREG((path / MANIFEST_NAME).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unavailable(path, error) from error


def unavailable(path: Path, error: OSError) -> Unavailable:
    """Return the error that a caller gets when the system has refused something."""
    sentence = out_of_descriptors(error)
    if sentence is not None:
        return Unavailable(sentence)
    if isinstance(error, PermissionError):
        return Unavailable(f"{path}: permission denied{_owner(path)}; {_remedy(path)}, or name another folder")
    return Unavailable(f"{path}: {error.strerror or error}; check the disk and the folder, then repeat the call")


def _remedy(path: Path) -> str:
    try:
        is_missing = not path.exists()
    except OSError:
        is_missing = False
    return (
        f"allow this user to create it in {path.absolute().parent}"
        if is_missing
        else "run this as the owner of the folder"
    )


def _owner(path: Path) -> str:
    try:
        return f" (it belongs to {path.owner()})"
    except (OSError, KeyError, NotImplementedError):
        return ""
