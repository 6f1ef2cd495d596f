"""A thread of the worker that cannot end unnoticed: a heartbeat that died in silence would cost every lease."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from leasemill.errors import LeasemillError


class Background:
    """Runs a function in a daemon thread and says when it has ended: with None, or with what ended it."""

    def __init__(self, name: str, run: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
        self._run = run
        self._on_end = on_end
        self._thread = threading.Thread(target=self._main, name=f"leasemill-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            self._run()
        except LeasemillError as raised:  # Broken, mostly: the worker must stop, and says why itself
            error = raised
        finally:
            self._on_end(error or sys.exc_info()[1])
