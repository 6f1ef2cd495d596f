"""Marks that handlers leave outside the commit boundary, so that runs can be counted apart from effects.

Each is a line, appended in one write by any number of processes and never removed: what is here happened, whatever the
store holds. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct, json

from leasemill.api.context import Context

TRAIL_VARIABLE: Final = "LEASEMILL_TRAIL"

What: TypeAlias = Literal["began", "committed", "refused", "failed"]


class Mark(Struct, frozen=True):
    """One line of the file: a run of a job began, or ended."""

    at: float
    what: What
    job: str
    attempt: int
    worker: str


_encode: Final = json.Encoder().encode
_decode: Final = json.Decoder(Mark).decode


class Trail:
    """A file of marks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_process(cls) -> Trail:
        """Return the file that this process's environment names."""
        return cls(Path(os.environ[TRAIL_VARIABLE]))

    def leave(self, what: What, ctx: Context) -> None:
        line = _encode(Mark(time.monotonic(), what, ctx.job_id, ctx.attempt, ctx.worker)) + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def marks(self, what: What | None = None, *, worker: str | None = None, job: str | None = None) -> list[Mark]:
        """Return all marks so far, oldest first."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = map(_decode, lines)
        return [
            mark
            for mark in found
            if (what is None or mark.what == what)
            and (worker is None or mark.worker == worker)
            and (job is None or mark.job == job)
        ]

    def unfinished(self, worker: str) -> list[Mark]:
        """Return the runs of a worker that began and have not ended."""
        open_runs: dict[tuple[str, int], Mark] = {}
        for mark in self.marks(worker=worker):
            if mark.what == "began":
                open_runs[mark.job, mark.attempt] = mark
            else:
                open_runs.pop((mark.job, mark.attempt), None)
        return list(open_runs.values())
