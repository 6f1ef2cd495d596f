"""Log lines for people and for machines: text or JSON, each with the job, the attempt and the worker it is about.

Leasemill logs through the standard library under `leasemill`. A line written by a handler, with any logger, carries
its job's ids as well: the formatters know which job runs where the line was written.

Much of what is logged was written by others: headers, names, the text of an error. What must never happen here: such a
text that begins a line of its own, drives the terminal it is shown on, or is a secret among a job's headers.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, Protocol, TextIO, TypeAlias

import msgspec

from leasemill.api.redaction import REDACTED, Redaction

LogFormat: TypeAlias = Literal["text", "json"]

FIRST_FIELDS: Final[tuple[str, ...]] = ("worker", "job", "kind", "attempt")
HEADERS: Final = "headers"
DETAILS: Final = "leasemill_details"
"""The name of the field with the message's values for machines: in JSON only."""
STORE_LOGGERS: Final = ("leasemill.store", "leasemill.postgres", "leasemill.wal")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", DETAILS}
_encode: Final = msgspec.json.Encoder(enc_hook=str).encode
_redaction: Final = Redaction()
SHORT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r"}
CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a line may not contain: all controls but the tab, what ends a line somewhere, what turns the
direction of text, and surrogates, which cannot be written."""


class HasLogFields(Protocol):
    @property
    def log_fields(self) -> dict[str, Any]: ...


running: ContextVar[HasLogFields | None] = ContextVar("leasemill_running", default=None)
"""The job that runs in this task or thread."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line besides its message: the running job's ids, then those passed with `extra`."""
    job = running.get()
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    bound: dict[str, Any] = {} if job is None else job.log_fields
    fields = {**bound, **given}
    first = {name: fields.pop(name) for name in FIRST_FIELDS if name in fields}
    return {**first, **fields}


def job_fields(job_id: str, kind: str, attempt: int, worker: str, headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of every line about a run; its headers as well, if it has some, without those that look like
    secrets. Left out here, and not by the formatters, so that a user's own formatter has none of them either."""
    fields: dict[str, Any] = {"job": job_id, "kind": kind, "attempt": attempt, "worker": worker}
    if headers:
        fields[HEADERS] = {name: REDACTED if _redaction.hides(name) else value for name, value in headers.items()}
    return fields


def escaped(text: str) -> str:
    """Return the text on one line, with controls as in a literal of Python or JSON (`\\n`, `\\u001b`)."""
    return CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"


class JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
            **getattr(record, DETAILS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escaped(_encode(line).decode())  # inside of strings only: the same value, written in another way


class TextFormatter(logging.Formatter):
    """Time, level, message, then the fields as name=value; the job's headers as header.name=value. The lines of an
    exception follow, indented: what begins without an indent is another line."""

    def format(self, record: logging.LogRecord) -> str:
        found = fields_of(record)
        headers = found.pop(HEADERS, None)
        if isinstance(headers, dict):
            found.update((f"header.{name}", value) for name, value in headers.items())
        elif headers is not None:
            found[HEADERS] = headers  # the user's own field of that name
        fields = " ".join(f"{name}={value}" for name, value in found.items())
        line = f"{_instant(record)} {record.levelname:<7} {record.getMessage()}" + (f"  [{fields}]" if fields else "")
        if not record.exc_info:
            return escaped(line)
        exception = self.formatException(record.exc_info).split("\n")
        return "\n".join([escaped(line), *(f"  {escaped(one)}" for one in exception)])


def configure_logging(
    log_format: LogFormat = "text",
    level: int | str = "INFO",
    stream: TextIO | None = None,
    *,
    worker_id: str | None = None,
) -> None:
    """Send every log line of this process, including the user's, to a stream in one of the two formats.

    With `worker_id`, every line carries it, also those of the store's threads.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if worker_id is not None:
        handler.addFilter(partial(_add_worker, worker_id))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


class _StoreLines(logging.Filter):
    """Adds the ids of the workers that run in this process to the lines of stores, which know of none."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: tuple[str, ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.workers or _add_worker(",".join(self.workers), record)


_store_lines: Final = _StoreLines()
for _name in STORE_LOGGERS:
    logging.getLogger(_name).addFilter(_store_lines)


@contextmanager
def worker_in_store_lines(worker_id: str) -> Iterator[None]:
    """Add the worker's id to the lines of the process's stores while it runs, however logging is configured."""
    _store_lines.workers = (*_store_lines.workers, worker_id)
    try:
        yield
    finally:
        _store_lines.workers = tuple(one for one in _store_lines.workers if one != worker_id)


def _add_worker(worker_id: str, record: logging.LogRecord) -> bool:
    vars(record).setdefault("worker", worker_id)
    return True


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
