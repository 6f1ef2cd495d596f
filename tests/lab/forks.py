"""A forked child of the test, and what it found."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

CHILD_S: Final = 30


def forked(run: Callable[[], bool]) -> bool:
    """What this returns in a forked child; False, too, if it raises there, or never returns."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        code = 1
        try:
            code = 0 if run() else 1
        except BaseException:  # noqa: BLE001  (the rest of the tests is not the child's)
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
