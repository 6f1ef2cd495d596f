"""Groups failures by cause: errors of one cause are equal when the values in them are removed.

Pure. A fingerprint is computed from a kind of job and its normalised error; it is the same everywhere, so it can be
copied from a list into a filter.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from leasemill.kernel.model import Job, JobState
from leasemill.kernel.read.filter import last_error

LONGEST: Final = 300
MOST_GROUPS: Final = 1_000
"""The most groups; failures with further fingerprints are counted together."""

QUARANTINED: Final = "quarantined: its runs ended without a report"
NO_ERROR: Final = "no error was reported"
OTHERS: Final = "other errors"

_TYPE: Final = re.compile(r"[A-Za-z_][\w.]*: ")
_VALUES: Final = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"(?<!\w)(['\"`])(?:(?!\1).)*\1(?!\w)"), "<value>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


def normalised(error: str) -> str:
    """The first line of an error without its values; the name of its type stays."""
    line = error.partition("\n")[0][:LONGEST].strip()
    kind = match[0] if (match := _TYPE.match(line)) else ""
    message = line[len(kind) :]
    for pattern, stands_for in _VALUES:
        message = pattern.sub(stands_for, message)
    return kind + message


def failure_of(job: Job) -> str:
    """Return why a job ended FAILED or DEAD, without the values in it."""
    if job.state is JobState.DEAD:
        return QUARANTINED
    error = last_error(job)
    return NO_ERROR if error is None else normalised(error)


def fingerprint(job: Job) -> str:
    return _digest(job.spec.kind, failure_of(job))


def error_fingerprint(kind: str, error: str) -> str:
    """The fingerprint of a job of this kind that fails with this error."""
    return _digest(kind, normalised(error))


def quarantine_fingerprint(kind: str) -> str:
    """The fingerprint of a job of this kind that is quarantined."""
    return _digest(kind, QUARANTINED)


def _digest(kind: str, text: str) -> str:
    return blake2b(f"{kind}\n{text}".encode(), digest_size=5).hexdigest()


class Group(Struct):
    """Failed jobs of one fingerprint; `example` is the one that failed last. Times as in the record."""

    fingerprint: str
    kind: str
    text: str
    count: int
    example: str
    first_at: int
    last_at: int
    queues: list[str]


class Groups:
    """Failed jobs, counted by fingerprint, in memory that does not grow with their number."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def add(self, job: Job) -> None:
        kind, text = job.spec.kind, failure_of(job)
        if len(self._groups) >= MOST_GROUPS and _digest(kind, text) not in self._groups:
            kind, text = "", OTHERS
        at = job.updated_at
        key = _digest(kind, text)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = Group(key, kind, text, 1, job.spec.id, at, at, [job.spec.queue])
            return
        group.count += 1
        group.first_at = min(group.first_at, at)
        if at >= group.last_at:
            group.last_at, group.example = at, job.spec.id
        if job.spec.queue not in group.queues:
            group.queues.append(job.spec.queue)

    def largest_first(self) -> list[Group]:
        return sorted(self._groups.values(), key=lambda group: (-group.count, group.fingerprint))
