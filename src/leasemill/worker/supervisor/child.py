"""One process of a worker, as its supervisor sees it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leasemill.worker.supervisor.channel import Channel

CONTROL_OPTION: Final = "--control"
HURRY_S: Final = 3.0
"""How long a process may take that was asked twice to stop: it plans with 2 s."""


class Child:
    """A process and its channel, from its start to its end. Times are monotonic."""

    def __init__(
        self, worker_id: str, command: Sequence[str], environment: Mapping[str, str], *, generation: int, now: float
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, f"--worker-id={worker_id}", f"{CONTROL_OPTION}={theirs.fileno()}"],
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.worker_id = worker_id
        self.channel = Channel(ours, send_waits=False)
        self.generation = generation
        """How many times the supervisor had been asked to restart its processes when this one started."""
        self.started_at = now
        self.instance: str | None = None
        """Known when it is ready to run."""
        self.may_run = False
        self.up_at: float | None = None
        self.stops = 0
        self.kill_at: float | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def return_code(self) -> int | None:
        """None while it runs. Asking collects the process, so that none is left as a zombie."""
        return self._process.poll()

    @property
    def is_ready(self) -> bool:
        return self.instance is not None

    @property
    def is_at_work(self) -> bool:
        """It runs jobs, and was not asked to stop."""
        return self.may_run and not self.stops

    def up_s(self, now: float) -> float | None:
        return None if self.up_at is None else now - self.up_at

    def run(self) -> None:
        self.may_run = True
        self.send({"do": "run"})

    def send(self, message: Mapping[str, Any]) -> None:
        self.channel.send(message)

    def stop(self, now: float, limit_s: float) -> None:
        """Ask it to stop within the limit; asked a second time, it does not wait for handlers."""
        limit_s = limit_s if self.stops == 0 else HURRY_S
        self.stops += 1
        self.kill_at = now + limit_s if self.kill_at is None else min(self.kill_at, now + limit_s)
        self.send({"do": "stop"})

    def kill(self) -> None:
        self.kill_at = None
        self._process.kill()

    def close(self) -> None:
        self.channel.close()

    def fileno(self) -> int:
        return self.channel.fileno()
