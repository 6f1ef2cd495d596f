"""A core for each process: `--cpu-affinity`.

What must never happen here: a core that was not this program's to use, or a supervisor that stays on a core of its
processes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from leasemill.errors import Invalid
from leasemill.operator.wording import counted

log = logging.getLogger("leasemill.supervisor")


def cores_of(count: int) -> list[int]:
    """One for each of so many processes, of those that this program may use. Raises Invalid if there are too few."""
    if sys.platform != "linux":
        raise Invalid("this system does not let a program choose its cores: leave out --cpu-affinity")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        raise Invalid(
            f"--cpu-affinity gives each process a core of its own, and there are {counted(len(cores), 'core')} for "
            f"{counted(count, 'process', 'processes')}: start fewer, or leave it out"
        )
    return cores[:count]


@contextmanager
def kept_to(core: int | None) -> Iterator[None]:
    """What this thread starts meanwhile runs on this core, and all its threads; None: anywhere. So it does on a core
    that was taken away since: a process in the wrong place is better than none."""
    if core is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        log.warning("core %d cannot be used any more (%s): a process starts on any other", core, error)
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):  # they were all taken away meanwhile, and the system has chosen others
            os.sched_setaffinity(0, before)
