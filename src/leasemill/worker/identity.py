"""Which process a worker is, of all there ever were, and whether that one has ended. Proof, or nothing.

A process id alone proves nothing: it is reused, and it means another process in another container. With the boot, the
namespace of process ids and the time of its start it names one process. Whether that one is gone is asked of the kernel
by a descriptor of the process (pidfd), which cannot come to mean another.
"""

from __future__ import annotations

import os
import select
from functools import cache
from pathlib import Path
from typing import Final

from leasemill.store.worker_records import ProcessIdentity

BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
STARTED_FIELD: Final = 19
"""The index of the start time in /proc/PID/stat, counted from the field behind the name."""


class Gone(Exception):
    """The process has ended: proved."""


def own() -> ProcessIdentity | None:
    """This process; None where the system does not show it."""
    return _own(os.getpid())  # again in a forked child


@cache
def _own(pid: int) -> ProcessIdentity | None:
    try:
        if Path("/proc/self").readlink().name != str(pid):
            return None  # the /proc of another namespace: its ids are not ours
        namespace = str(Path("/proc/self/ns/pid").readlink())
        return ProcessIdentity(pid, _started(pid), BOOT.read_text().strip(), namespace)
    except (OSError, ValueError, IndexError):
        return None


def can_be_seen(process: ProcessIdentity) -> bool:
    """Whether it is of the same boot and namespace as this process, and not this one."""
    here = own()
    return (
        here is not None
        and (process.boot, process.namespace) == (here.boot, here.namespace)
        and process.pid != here.pid
    )


def descriptor_of(process: ProcessIdentity) -> int | None:
    """A descriptor that is readable once the process has ended; None: it cannot be had. Raises Gone if it has ended."""
    if not can_be_seen(process):
        return None
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        raise Gone from None
    except (OSError, AttributeError):  # not allowed here, or not on this system
        return None
    try:
        started = _started(process.pid)
    except (OSError, ValueError, IndexError):
        started = None  # hidden from us, or it has ended just now, which the descriptor shows
    if started not in (None, process.started):
        os.close(descriptor)
        raise Gone
    if started is None and not _is_readable(descriptor):
        os.close(descriptor)
        return None
    return descriptor


def has_ended(process: ProcessIdentity | None) -> bool:
    """True: proved. False: it runs, is stopped, or nobody here can know."""
    if process is None:
        return False
    try:
        descriptor = descriptor_of(process)
    except Gone:
        return True
    if descriptor is None:
        return False
    try:
        return _is_readable(descriptor)
    finally:
        os.close(descriptor)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _started(pid: int) -> int:
    """Return when the process started, in clock ticks since the boot."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[STARTED_FIELD])
