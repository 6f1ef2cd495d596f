"""A PostgreSQL server that tests stop, kill and start again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from leasemill.testing.postgres import STOP_TIMEOUT_S, PostgresServer
from tests.lab.processes import wait_until

STOPPED: Final = frozenset("TZ") | {""}
ENDED: Final = frozenset("ZX") | {""}

StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS: Final[dict[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class KillableServer(PostgresServer):
    """After `stop` and `kill` it can be started again."""

    def stop(self, mode: StopMode = "fast") -> None:
        if self._process is not None:
            self._process.send_signal(STOP_SIGNALS[mode])
            self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """The whole server at once, as if its machine had lost power (but for the page cache)."""
        if self._process is None or not self.is_running:
            return
        pid = self._process.pid
        self._process.send_signal(signal.SIGSTOP)  # so that it makes no child that is not listed
        wait_until(lambda: _status(pid) in STOPPED, "the server to stop", STOP_TIMEOUT_S, every_s=0.001)
        children = _children(pid)
        for one in (pid, *children):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        wait_until(  # or the next start finds its memory in use
            lambda: all(_status(child) in ENDED for child in children), "its children to end", STOP_TIMEOUT_S
        )


def _status(pid: int) -> str:
    """A process's state in one letter (Linux); empty when it is gone, or on other systems."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    """The server's backends (Linux); elsewhere they notice by themselves that their parent is gone."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []
