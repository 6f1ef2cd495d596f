"""One clock for every process of a boot: wall time as it was at the first opening, advanced by the boot clock.

It is never stepped with the wall clock, runs on while the machine sleeps, and does not go back from one boot to the
next, unless it was more than a day ahead (W17).
"""

from __future__ import annotations

import ctypes
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leasemill.errors import Refused
from leasemill.kernel.events import ClockSet
from leasemill.kernel.model import NEVER, SECOND
from leasemill.store.file.manifest import BootClock

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
FAR_AHEAD_US: Final = 24 * 3_600 * SECOND
"""A machine without a battery for its clock starts with the time at which it was last stopped, or some hours before it,
until its time service has the right one: the folder's clock is not set back for that."""
SET_US: Final = SECOND
EARLIEST_US: Final = 1_790_000_000 * SECOND
"""September 2026, before this version was written: a clock that shows less (1970, without a battery) is wrong."""
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


def step(machine: Machine, latest_at: int, *, is_asked: bool) -> ClockSet | None:
    """W17: how the clock is to be set, before it is anchored. None: it goes on.

    In a new boot only back, if it was far ahead and the machine's clock can be right: while a machine is off, time
    passes. `is_asked`: in a boot, to what the machine's clock shows."""
    wall = machine.wall_us()
    ahead_us = latest_at - wall if latest_at < NEVER else 0
    if is_asked:
        return ClockSet(latest_at, wall) if latest_at and abs(ahead_us) >= SET_US else None
    return ClockSet(latest_at, wall) if ahead_us >= FAR_AHEAD_US and wall >= EARLIEST_US else None


def shown(us: int) -> str:
    return f"{datetime.fromtimestamp(us / SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


def anchored(machine: Machine, latest_at: int) -> BootClock:
    """The clock of this boot: the wall's time, but never before what was recorded already."""
    now = max(machine.wall_us(), latest_at if latest_at < NEVER else 0)
    return BootClock(machine.boot_id(), now - machine.since_boot_ns() // 1_000)
