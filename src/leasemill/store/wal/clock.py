"""One clock for every process of a boot: wall time as it was at the first opening, advanced by the boot clock.

It is never stepped with the wall clock, runs on while the machine sleeps, and does not go back from one boot to the
next.
"""

from __future__ import annotations

import ctypes
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leasemill.errors import Refused
from leasemill.kernel.model import NEVER
from leasemill.store.wal.manifest import BootClock

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Machine(Protocol):
    """A machine's clocks."""

    def boot_id(self) -> str: ...
    def since_boot_ns(self) -> int: ...
    def wall_us(self) -> int: ...


class RealMachine:
    def boot_id(self) -> str:
        """The same for every process of a boot, also after the machine slept or its wall clock was set."""
        if BOOT_ID.exists():
            return BOOT_ID.read_text().strip()
        if sys.platform == "darwin":
            return system_value("kern.bootsessionuuid")
        raise Refused(
            f"a file: store needs Linux or macOS; this system ({sys.platform}) has no boot identity that Leasemill "
            "knows: use postgresql://"
        )

    since_boot_ns = staticmethod(partial(time.clock_gettime_ns, BOOT_CLOCK))

    def wall_us(self) -> int:
        return time.time_ns() // 1_000


def system_value(name: str) -> str:
    """A text that sysctl has (macOS)."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_size_t(0)
    nothing = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, nothing) != 0:
        raise OSError(ctypes.get_errno(), f"sysctl {name} failed")
    value = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, nothing) != 0:
        raise OSError(ctypes.get_errno(), f"sysctl {name} failed")
    return value.value.decode()


def anchored(machine: Machine, latest_at: int) -> BootClock:
    """The clock of this boot: the wall's time, but never before what was recorded already."""
    now = max(machine.wall_us(), latest_at if latest_at < NEVER else 0)
    return BootClock(machine.boot_id(), now - machine.since_boot_ns() // 1_000)
