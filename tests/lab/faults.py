"""A machine whose disk fails, fills, forgets and crashes, for a `file:` store to stand on.

    machine = SimulatedMachine()
    store = FileStore("jobs", disk=machine.process(), machine=machine, options=…)
    machine.crash_at(17)                    # SimulatedCrash at the 17th operation from here
    machine.lose_power(random.Random(1))    # what was synced is there, of the rest some

Files live in memory. Of each file the machine knows what reading gives and what the platter has; a crash leaves every
512-byte sector in one of the versions it had since it was last synced, and every creation, renaming and removal since
the folder was last synced done or not done, each on its own. That is harsher than any journalling file system.

Every process has its own `SimulatedDisk`; they share the files, the lock and the control page. What must never happen
here: a store that learns from the simulation what a real disk would not show it.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Final, Literal, cast

from leasemill.kernel.model import SECOND
from leasemill.store.file.disk import CONTROL_BYTES, File
from leasemill.store.file.folder import LOCK_NAME

SECTOR_BYTES: Final = 512
FOREVER: Final = 2**62


class SimulatedCrash(BaseException):
    """The process ends here, in the middle of what it did. Nothing of it runs any more."""


class Operation(Enum):
    """What a process asks of the disk, as far as it can fail."""

    WRITE = "write"
    SYNC = "sync"
    CREATE = "create"
    RENAME = "rename"
    REMOVE = "remove"
    SYNC_FOLDER = "sync_folder"
    ALLOCATE = "allocate"
    SHRINK = "shrink"
    STORE = "store"
    """A number is put on the control page; only of a machine that `counts_stores`."""
    UNLOCK = "unlock"
    """Only of a machine that `counts_stores`."""


class Sync(Enum):
    """What a failed sync leaves."""

    KEEPS = "the pages are called clean and can still be read, but are not on the platter"
    FORGETS = "the pages are gone: reading gives what the platter has"


class SimulatedContent:
    """One file's bytes: as they are read, as they are on the platter, and the writes in between."""

    __slots__ = ("cached", "platter", "unsynced")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.platter = bytearray()
        self.unsynced: list[tuple[int, bytes]] = []

    def write(self, offset: int, content: bytes) -> None:
        _put(self.cached, offset, content)
        self.unsynced.append((offset, bytes(content)))

    def truncate(self) -> None:
        self.cached.clear()
        self.platter.clear()
        self.unsynced.clear()

    def sync(self) -> None:
        for offset, content in self.unsynced:
            _put(self.platter, offset, content)
        self.unsynced.clear()

    def fail_sync(self, leaves: Sync) -> None:
        self.unsynced.clear()
        if leaves is Sync.FORGETS:
            self.cached[:] = self.platter.ljust(len(self.cached), b"\0")

    def crash(self, chance: Chance) -> None:
        """Each sector that was written to ends in one of the versions it had."""
        sectors: dict[int, list[tuple[int, bytes]]] = {}
        for offset, content in self.unsynced:
            for at, part in _sectors(offset, content):
                sectors.setdefault(at // SECTOR_BYTES, []).append((at, part))
        for versions in sectors.values():
            for at, part in versions[: chance.kept_of(len(versions))]:
                _put(self.platter, at, part)
        self.unsynced.clear()
        self.cached[:] = self.platter


class Chance:
    """How much of what was not synced a crash keeps: nothing, all of it, or some, drawn once for each crash."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._bias = source.choice((0.0, 1.0, 0.5, 0.1, 0.9))

    def kept_of(self, count: int) -> int:
        """Of `count` versions in order, how many were reached."""
        if self._bias in (0.0, 1.0):
            return round(self._bias * count)
        return sum(self.is_kept() for _ in range(count))

    def is_kept(self) -> bool:
        return self._random.random() < self._bias


def _put(content: bytearray, offset: int, part: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(part)] = part


def _sectors(offset: int, content: bytes) -> list[tuple[int, bytes]]:
    parts: list[tuple[int, bytes]] = []
    start = 0
    while start < len(content):
        end = min(len(content), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        parts.append((offset + start, content[start:end]))
        start = end
    return parts


FolderChange = Callable[[dict[str, SimulatedContent]], None]


class SimulatedMachine:
    """A folder, the processes that use it, and the machine's clocks. Threads may share it.

    `before` is called when an operation begins, `after` when a file was synced: to let others act at that moment.
    `counts_stores`: each store to the control page and each unlocking is an operation too, at which a process may die.
    """

    def __init__(
        self, where: str = "simulated", *, wall_us: int = 1_700_000_000 * SECOND, counts_stores: bool = False
    ) -> None:
        self.where = where
        self.counts_stores = counts_stores
        self.operations: Counter[Operation] = Counter()
        self.wall_us_now = wall_us
        self._guard = threading.RLock()
        self._unlocked = threading.Condition(self._guard)
        self._lock_of: SimulatedDisk | None = None
        self._boots = 1
        self._since_boot_us = 0
        self._processes = 0
        self._entries: dict[str, SimulatedContent] = {}
        self._platter: dict[str, SimulatedContent] = {}
        self._unsynced: list[FolderChange] = []
        self._control = bytearray(CONTROL_BYTES)
        self._free_bytes: int | None = None
        self.forget_faults()

    # The machine's clocks

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def since_boot_ns(self) -> int:
        return self._since_boot_us * 1_000

    def wall_us(self) -> int:
        return self.wall_us_now

    def advance(self, us: int) -> None:
        """Time passes, for both clocks."""
        self._since_boot_us += us
        self.wall_us_now += us

    # Its processes

    def process(self) -> SimulatedDisk:
        """The disk as one more process sees it."""
        self._processes += 1
        return SimulatedDisk(self, self._processes)

    def kill(self, process: SimulatedDisk) -> None:
        """The process is gone, its lock is free; what it wrote is still in the machine's memory."""
        with self._guard:
            process.is_dead = True
            self._release(process)

    def lose_power(self, source: random.Random) -> None:
        """Every process is gone, and of what was not synced a part. The machine starts again."""
        with self._guard:
            chance = Chance(source)
            for change in self._unsynced:
                if chance.is_kept():
                    change(self._platter)
            self._unsynced.clear()
            kept = {id(content): content for content in self._platter.values()}
            for content in kept.values():
                content.crash(chance)
            self._entries = dict(self._platter)
            if source.random() < 0.5:
                self._control = bytearray(CONTROL_BYTES)  # else as it was: it is of another boot
            self._boots += 1
            self._since_boot_us = 0
            self._lock_of = None
            self.forget_faults()

    # Faults

    def forget_faults(self) -> None:
        self._crash_in = FOREVER
        self._crash_of: SimulatedDisk | None = None
        self._sync_fails_in = FOREVER
        self._sync_fails_of: SimulatedDisk | None = None
        self._sync_leaves = Sync.KEEPS
        self._full_in = FOREVER
        self.before: Callable[[SimulatedDisk, Operation, str], None] | None = None
        self.after: Callable[[SimulatedDisk, Operation, str], None] | None = None

    def crash_at(self, count: int, process: SimulatedDisk | None = None) -> None:
        """SimulatedCrash at the `count`th operation from now (the first is 1), of one process or of any."""
        self._crash_in, self._crash_of = count, process

    def fail_sync_at(self, count: int, process: SimulatedDisk | None = None, leaves: Sync = Sync.KEEPS) -> None:
        """The `count`th sync of a file or of the folder from now fails with EIO."""
        self._sync_fails_in, self._sync_fails_of, self._sync_leaves = count, process, leaves

    def fill_at(self, count: int) -> None:
        """From the `count`th step on that needs space (a new file, or one that grows), there is none but what is freed
        then."""
        self._full_in = count

    def fill(self) -> None:
        """There is no space but what is freed from now on."""
        self._free_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._free_bytes is not None

    def make_room(self) -> None:
        self._free_bytes = None
        self._full_in = FOREVER

    # What tests look at

    def files(self) -> dict[str, bytes]:
        """Every file as it is read now."""
        return {name: bytes(content.cached) for name, content in sorted(self._entries.items())}

    def content(self, name: str) -> SimulatedContent:
        return self._entries[name]

    def put(self, name: str, content: bytes) -> None:
        """Place a file, synced."""
        placed = SimulatedContent()
        placed.write(0, content)
        placed.sync()
        self._entries[name] = self._platter[name] = placed

    def copy(self, *, reboots: bool = True) -> SimulatedMachine:
        """Another machine with the same files, all synced; in the next boot, or in this one with its control page."""
        twin = SimulatedMachine(self.where, wall_us=self.wall_us_now, counts_stores=self.counts_stores)
        twin._boots = self._boots + reboots
        if not reboots:
            twin._control[:] = self._control
            twin._since_boot_us = self._since_boot_us
        for name, content in self.files().items():
            twin.put(name, content)
        return twin

    # For SimulatedDisk

    def _step(self, process: SimulatedDisk, operation: Operation, name: str) -> None:
        """One operation begins; here faults strike."""
        if process.is_dead:
            raise SimulatedCrash
        if self.before is not None:
            self.before(process, operation, name)
        self.operations[operation] += 1
        if self._crash_of in (None, process):
            self._crash_in -= 1
            if self._crash_in == 0:
                self.kill(process)
                raise SimulatedCrash(f"{operation.value} {name}")

    def _sync_fails(self, process: SimulatedDisk) -> bool:
        if self._sync_fails_of not in (None, process):
            return False
        self._sync_fails_in -= 1
        return self._sync_fails_in == 0

    def _take_space(self, before_bytes: int, after_bytes: int) -> None:
        """A file grows from one size to another."""
        self._full_in -= 1
        if self._full_in == 0:
            self._free_bytes = 0
        if self._free_bytes is None:
            return
        needed = _blocks(after_bytes) - _blocks(before_bytes)
        if needed > self._free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._free_bytes -= needed

    def _free_space(self, before_bytes: int, after_bytes: int = 0) -> None:
        if self._free_bytes is not None:
            self._free_bytes += _blocks(before_bytes) - _blocks(after_bytes)

    def _change_folder(self, change: FolderChange) -> None:
        change(self._entries)
        self._unsynced.append(change)

    def _release(self, process: SimulatedDisk) -> None:
        with self._guard:
            if self._lock_of is process:
                self._lock_of = None
                self._unlocked.notify_all()


class SimulatedFile:
    """An open file of one process."""

    def __init__(self, disk: SimulatedDisk, name: str, content: SimulatedContent) -> None:
        self._disk = disk
        self._name = name
        self._content: SimulatedContent | None = content

    def read(self, offset: int, length: int) -> bytes:
        self._disk._refuse_if_dead()
        return bytes(self._open().cached[offset : offset + length])

    def write(self, offset: int, content: bytes) -> None:
        machine = self._disk.machine
        with machine._guard:
            opened = self._open()
            try:
                machine._step(self._disk, Operation.WRITE, self._name)
            except SimulatedCrash:
                opened.write(offset, content[: len(content) // 2])  # killed in the middle of it
                raise
            if offset + len(content) > len(opened.cached):
                machine._take_space(len(opened.cached), offset + len(content))
            opened.write(offset, content)

    def sync(self) -> None:
        machine = self._disk.machine
        with machine._guard:
            opened = self._open()
            machine._step(self._disk, Operation.SYNC, self._name)
            if machine._sync_fails(self._disk):
                opened.fail_sync(machine._sync_leaves)
                raise OSError(errno.EIO, "Input/output error")
            opened.sync()
            if machine.after is not None:
                machine.after(self._disk, Operation.SYNC, self._name)

    def size(self) -> int:
        return len(self._open().cached)

    def close(self) -> None:
        self._content = None

    def _open(self) -> SimulatedContent:
        if self._content is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return self._content


class SimulatedScratch:
    """A file without a name."""

    def __init__(self) -> None:
        self._content = bytearray()

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._content[offset : offset + length])

    def write(self, offset: int, content: bytes) -> None:
        _put(self._content, offset, content)

    def sync(self) -> None:
        raise AssertionError("a scratch file is never synced")

    def try_lock(self) -> bool:
        raise AssertionError("a scratch file is never locked")

    def unlock(self) -> None:
        raise AssertionError("a scratch file is never locked")

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        self._content.clear()


class SimulatedPage:
    """The control page as one process sees it, as far as `Control` uses a memoryview: it may die at every store."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, disk: SimulatedDisk, view: memoryview) -> None:
        self._disk = disk
        self._view = view

    def __getitem__(self, index: int | slice) -> int | SimulatedPage:
        return SimulatedPage(self._disk, self._view[index]) if isinstance(index, slice) else self._view[index]

    def __setitem__(self, index: int | slice, value: int | bytes) -> None:
        with self._disk.machine._guard:
            self._disk.machine._step(self._disk, Operation.STORE, f"{index}")
            self._view[index] = value  # type: ignore[index, assignment]

    def __eq__(self, other: object) -> bool:
        return self._view == other

    def __len__(self) -> int:
        return len(self._view)

    def __bytes__(self) -> bytes:
        return bytes(self._view)

    def cast(self, kind: Literal["Q"]) -> SimulatedPage:
        return SimulatedPage(self._disk, self._view.cast(kind))

    def release(self) -> None:
        self._view.release()


class SimulatedDisk:
    """The folder as one process has it open: a `leasemill.store.file.disk.Disk`. May be closed and used again."""

    def __init__(self, machine: SimulatedMachine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.is_dead = False

    @property
    def where(self) -> str:
        return self.machine.where

    @property
    def identity(self) -> str:
        return LOCK_NAME

    @property
    def is_there(self) -> bool:
        return True

    @property
    def control(self) -> memoryview:
        view = memoryview(self.machine._control)
        return cast(memoryview, SimulatedPage(self, view)) if self.machine.counts_stores else view

    def lock(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        machine = self.machine
        with machine._guard:
            self._refuse_if_dead()
            while machine._lock_of not in (None, self):
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                machine._unlocked.wait(left_s)
            machine._lock_of = self

    def unlock(self) -> None:
        self._refuse_if_dead()
        if self.machine.counts_stores and self.machine._lock_of is self:
            self.machine._step(self, Operation.UNLOCK, LOCK_NAME)
        self.machine._release(self)

    def open(self, name: str) -> File:
        with self.machine._guard:
            self._refuse_if_dead()
            content = self.machine._entries.get(name)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
            return SimulatedFile(self, name, content)

    def create(self, name: str, size: int, head: bytes = b"") -> File:
        machine = self.machine
        with machine._guard:
            machine._step(self, Operation.CREATE, name)
            machine._take_space(0, 1)
            content = machine._entries.get(name)
            if content is None:
                content = SimulatedContent()
                machine._change_folder(_naming(name, content))
            machine._free_space(len(content.cached) + 1)
            content.truncate()
        file = SimulatedFile(self, name, content)
        try:
            file.write(0, head.ljust(size, b"\0"))
            file.sync()
        except OSError:
            self._forget(name)
            raise
        return file

    def scratch(self) -> File:
        """A file of this process alone: nobody sees it, no sync and no crash matters to it."""
        return SimulatedScratch()

    def rename(self, old: str, new: str) -> None:
        machine = self.machine
        with machine._guard:
            machine._step(self, Operation.RENAME, f"{old} to {new}")
            content = machine._entries.get(old)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
            if new in machine._entries:
                machine._free_space(len(machine._entries[new].cached))
            machine._change_folder(_renaming(old, new, content))

    def remove(self, name: str) -> None:
        with self.machine._guard:
            self.machine._step(self, Operation.REMOVE, name)
            self._forget(name)

    def sync_folder(self) -> None:
        machine = self.machine
        with machine._guard:
            machine._step(self, Operation.SYNC_FOLDER, "")
            if machine._sync_fails(self):
                raise OSError(errno.EIO, "Input/output error")
            for change in machine._unsynced:
                change(machine._platter)
            machine._unsynced.clear()

    def names(self) -> list[str]:
        self._refuse_if_dead()
        return sorted(self.machine._entries)

    def size(self, name: str) -> int:
        self._refuse_if_dead()
        content = self.machine._entries.get(name)
        return 0 if content is None else len(content.cached)

    def allocate(self, name: str, size: int) -> None:
        """What such a file holds matters to nobody: it is there, or after a crash it may be not."""
        machine = self.machine
        with machine._guard:
            machine._step(self, Operation.ALLOCATE, name)
            had = self.size(name)
            if had < size:
                machine._take_space(had, size)
                if name not in machine._entries:
                    machine._change_folder(_naming(name, SimulatedContent()))
                machine._entries[name].write(0, bytes(size))

    def shrink(self, name: str, size: int) -> None:
        machine = self.machine
        with machine._guard:
            machine._step(self, Operation.SHRINK, name)
            content = machine._entries[name]
            machine._free_space(len(content.cached), size)
            for kept in (content.cached, content.platter):
                del kept[size:]
            content.unsynced.clear()

    @property
    def free_bytes(self) -> int:
        free = self.machine._free_bytes
        return FOREVER if free is None else free

    def close(self) -> None:
        """Closing frees the lock, as closing the last descriptor does."""
        self.machine._release(self)

    def _forget(self, name: str) -> None:
        if name in self.machine._entries:
            self.machine._free_space(len(self.machine._entries[name].cached))
            self.machine._change_folder(_removing(name))

    def _refuse_if_dead(self) -> None:
        if self.is_dead:
            raise SimulatedCrash


def _blocks(count: int) -> int:
    """In bytes, as the disk counts them: whole sectors."""
    return -(-count // SECTOR_BYTES) * SECTOR_BYTES


def _naming(name: str, content: SimulatedContent) -> FolderChange:
    def change(entries: dict[str, SimulatedContent]) -> None:
        entries[name] = content

    return change


def _renaming(old: str, new: str, content: SimulatedContent) -> FolderChange:
    def change(entries: dict[str, SimulatedContent]) -> None:
        if entries.get(old) is content:
            del entries[old]
        entries[new] = content

    return change


def _removing(name: str) -> FolderChange:
    def change(entries: dict[str, SimulatedContent]) -> None:
        entries.pop(name, None)

    return change
