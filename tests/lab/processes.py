"""Worker processes for tests: those of the demo, with logs that can be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from msgspec import json

from leasemill.demo import workers
from leasemill.demo.workers import TookTooLong, wait_until

__all__ = ["IMPORT_PATH", "TookTooLong", "WorkerProcess", "wait_until"]

ROOT: Final = Path(__file__).resolve().parents[2]
IMPORT_PATH: Final = f"{ROOT}:{ROOT / 'src'}"
"""PYTHONPATH of a process that imports apps from tests."""


class WorkerProcess(workers.WorkerProcess):
    """`leasemill worker` in a process and a session of its own."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, whoever stopped it."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"

    def await_started(self) -> None:
        def has_started() -> bool:
            self.check_running()
            return self.has_logged("worker started")

        wait_until(has_started, f"{self.id} to start")

    def log_lines(self) -> list[dict[str, Any]]:
        """Its log; lines that are not JSON (of the interpreter, not of the worker) are left out."""
        return [json.decode(line) for line in self.log().splitlines() if line.startswith("{")]

    def has_logged(self, text: str, **fields: object) -> bool:
        return any(
            text in line["message"] and all(line.get(name) == value for name, value in fields.items())
            for line in self.log_lines()
        )
