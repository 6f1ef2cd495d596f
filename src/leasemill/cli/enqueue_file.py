"""`leasemill enqueue --from`: a job for each line of a file, sent in batches as they are read.

Lines are sent in their order. What stops the command (a line that is wrong, a known id with other content, the store,
an interruption) is reported with what was sent before, so that nothing is lost and nothing has to be guessed. With an
id in each line the same file can be sent again: what is there already makes no other job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from leasemill.api.call import Call
from leasemill.api.enqueue_batch import send_all
from leasemill.api.handle import JobHandle
from leasemill.api.job import JobType
from leasemill.cli.interrupt import Interruptible
from leasemill.cli.progress import ShownProgress
from leasemill.errors import Invalid, JobConflict, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import check_json
from leasemill.operator.wording import counted

BATCH: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024
STANDARD_INPUT: Final = "-"
WRONG_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    call: Call[Any]
    end: int
    """Where the line ends, in bytes from the beginning."""


@dataclass(slots=True)
class Sent:
    """The outcome of the lines so far."""

    jobs: int = 0
    duplicates: int = 0
    last_line: int = 0
    """All lines up to this one were sent."""

    def document(self) -> dict[str, int]:
        return {"jobs": self.jobs, "duplicates": self.duplicates, "lines": self.last_line}

    def sentence(self) -> str:
        known = f", {counted(self.duplicates, 'duplicate')} skipped" if self.duplicates else ""
        return f"{counted(self.jobs, 'job')} enqueued{known}"


class Source:
    """The lines of a file, each of them checked as a call."""

    def __init__(self, file: BinaryIO, name: str, job: JobType[..., Any], id_field: str | None) -> None:
        self._file = file
        self._name = name
        self._job = job
        self._id_field = id_field
        self.size = os.fstat(file.fileno()).st_size if name != STANDARD_INPUT else None

    def lines(self) -> Iterator[Line | Invalid]:
        """Yields an error in place of a line that is wrong. Empty lines are skipped."""
        end = 0
        for number, text in enumerate(self._file, 1):
            end += len(text)
            if not text.strip():
                continue
            try:
                yield Line(number, self._call(text), end)
            except Invalid as error:
                yield Invalid(f"line {number:,} of {self._where}: {error}")

    @property
    def _where(self) -> str:
        return "standard input" if self._name == STANDARD_INPUT else self._name

    def _call(self, text: bytes) -> Call[Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise Invalid(f"it is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise Invalid('it must be a JSON object of arguments, for example {"to": "ann@example.com"}')
        job = self._job
        if self._id_field is not None:
            job = job.options(job_id=self._id(found, self._id_field))
        call = job.call(**found)
        check_json("payload", call.spec.payload)  # here, where the line is known
        return call

    def _id(self, found: dict[str, Any], field: str) -> str:
        """Return the job's id. The field stays an argument if the job has a parameter of this name."""
        if field not in found:
            raise Invalid(f"it has no field {field!r} (see --id-field)")
        job_id = found[field] if field in self._job.arguments.names else found.pop(field)
        if not isinstance(job_id, str | int) or isinstance(job_id, bool):
            raise Invalid(f"its field {field!r} must be a string or a whole number: it is the job's id")
        return str(job_id)


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise Invalid(f"--from {name}: {error.strerror}") from None
    with file:
        yield file


def enqueue_lines(source: Source, group: str | None, *, is_quiet: bool) -> Sent:
    """Enqueue every line, up to the first that is wrong."""
    sent = Sent()
    wrong: Invalid | None = None
    batch: list[Line] = []
    with ShownProgress("enqueued", "job", is_quiet=is_quiet) as progress:
        try:
            for line in source.lines():
                if isinstance(line, Invalid):
                    wrong = line
                    break
                batch.append(line)
                if _is_full(batch):
                    _send(batch, group, sent, progress, source.size)
                    batch = []
            if batch:
                _send(batch, group, sent, progress, source.size)
        except KeyboardInterrupt:
            raise Refused(f"interrupted: {_so_far(sent)}") from None
    if wrong is not None:
        raise Invalid(
            f"{wrong} ({_so_far(sent)}; correct it and send the remaining lines, or with --id-field "
            "the whole file again)"
        )
    return sent


def check_lines(source: Source, *, is_quiet: bool) -> tuple[int, list[str]]:
    """Return how many lines are correct, and the errors of the first that are not."""
    right, wrong = 0, list[str]()
    with ShownProgress("checked", "line", is_quiet=is_quiet) as progress:
        for line in source.lines():
            if isinstance(line, Invalid):
                wrong.append(str(line))
                if len(wrong) == WRONG_SHOWN:
                    break
            else:
                right += 1
                progress.add(1, line.end / source.size if source.size else None)
    return right, wrong


def _is_full(batch: list[Line]) -> bool:
    return len(batch) == BATCH or batch[-1].end - batch[0].end > BATCH_BYTES


def _send(batch: list[Line], group: str | None, sent: Sent, progress: ShownProgress, size: int | None) -> None:
    """Enqueue one batch. An interruption takes effect when the batch is counted; a second one at once."""
    calls = [line.call if group is None else line.call.in_group(group) for line in batch]
    uncertain = f"{_so_far(sent)}; lines {batch[0].number:,} to {batch[-1].number:,} may or may not be enqueued"
    with Interruptible() as interruptible:
        try:
            handles = send_all(calls[0].app, calls)
        except Unavailable as error:
            raise Unavailable(f"{error} ({uncertain})") from error
        except KeyboardInterrupt:
            raise Refused(f"interrupted: {uncertain}") from None
        _count(batch, handles, sent)
        progress.reach(sent.jobs + sent.duplicates, share=batch[-1].end / size if size else None)
        interruptible.check()


def _count(batch: list[Line], handles: list[JobHandle[Any]], sent: Sent) -> None:
    conflicts = [line for line, handle in zip(batch, handles, strict=True) if isinstance(handle.outcome, c.Conflict)]
    duplicates = sum(handle.is_duplicate for handle in handles)
    sent.jobs += len(handles) - duplicates - len(conflicts)
    sent.duplicates += duplicates
    sent.last_line = batch[-1].number
    if conflicts:
        first, *others = conflicts
        more = f"; {counted(len(others), 'other line has', 'other lines have')} the same problem" if others else ""
        raise Refused(f"line {first.number:,}: {JobConflict(first.call.job_id)}{more} ({_so_far(sent)})")


def _so_far(sent: Sent) -> str:
    if not sent.last_line:
        return "nothing was enqueued"
    return f"{sent.sentence()}, up to line {sent.last_line:,}"
