"""Lines that handlers leave outside the commit boundary, so that their runs can be told from their effects.

Appended in one write each, by any number of processes, and never taken back: what stands here happened, whatever the
store says. Times are of the monotonic clock, which all processes of a machine share.
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
    """One line: what a run of a job came to."""

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
        """The trail whoever started this process wants."""
        return cls(Path(os.environ[TRAIL_VARIABLE]))

    def leave(self, what: What, ctx: Context) -> None:
        line = _encode(Mark(time.monotonic(), what, ctx.job_id, ctx.attempt, ctx.worker)) + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def marks(self, what: What | None = None, *, worker: str | None = None, job: str | None = None) -> list[Mark]:
        """What was left so far, oldest first."""
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
        """Runs of a worker that began and did not come to anything yet."""
        open_runs: dict[tuple[str, int], Mark] = {}
        for mark in self.marks(worker=worker):
            if mark.what == "began":
                open_runs[mark.job, mark.attempt] = mark
            else:
                open_runs.pop((mark.job, mark.attempt), None)
        return list(open_runs.values())
