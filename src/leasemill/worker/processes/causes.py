"""How a handler's process ended, or why it did not start, in words: for the job's record, and for people."""

from __future__ import annotations

import signal
from typing import Final

from leasemill.worker.processes.messages import CannotBegin

EXIT_CUT_OFF: Final = 71
"""The exit status of a process whose handler has closed its connection to the worker."""
CUT_OFF: Final = "its process closed its connection to the worker"


def cause_of(status: int) -> str:
    """How a process ended, in words."""
    if status == EXIT_CUT_OFF:
        return CUT_OFF
    if status >= 0:
        return f"its process ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed by {name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")


def no_start(refusal: CannotBegin | None, cause: str) -> str:
    if refusal is None:
        return f"a process for handlers could not start: {cause} while it imported the app"
    return (
        f"the app cannot be imported in a process for handlers: {refusal.why}\n"
        'With executor="process" the app\'s module is imported again, in a new process.\n' + refusal.traceback
    )
