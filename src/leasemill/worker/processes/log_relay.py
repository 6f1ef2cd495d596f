"""Log lines of a handler's process: sent to the worker as they are written, and logged there with the job's ids.

A line is on its way when the logging call returns, so a process that dies right after it loses none.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from leasemill.api.logs import HasLogFields, running
from leasemill.worker.processes.channel import MessageChannel
from leasemill.worker.processes.messages import LogLine

NOT_SENT: Final = frozenset(
    {"name", "levelno", "levelname", "msg", "args", "exc_info", "exc_text", "message", "asctime", "processName"}
)
"""The fields of a record that the message has separately, or that the receiver makes."""


class RaisedInProcess(Exception):
    """Stands for what a handler raised in its process, in the log: its text is the traceback."""


class LogSender(logging.Handler):
    """Sends what is logged in a handler's process to the worker."""

    def __init__(self, channel: MessageChannel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            exception = record.exc_text
            if exception is None and record.exc_info:
                exception = logging.Formatter().formatException(record.exc_info)
            fields = {name: value for name, value in vars(record).items() if name not in NOT_SENT}
            line = LogLine(
                record.name, record.levelno, record.getMessage(), fields, exception, running.get() is not None
            )
            self._channel.send(line)
        except OSError:
            pass  # the worker is gone, and this process about to be
        except Exception:  # noqa: BLE001  (what the user logs: writing it may run code of theirs)
            self.handleError(record)


def use_for_all(handler: logging.Handler, levels: dict[str, int]) -> None:
    """The root logger has this handler and no other; loggers have the worker's levels."""
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name, level in levels.items():
        (logging.getLogger(name) if name else root).setLevel(level)


def levels() -> dict[str, int]:
    """The levels that were set in this process, by the logger's name; the root logger's name is ""."""
    known = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {"": logging.root.level} | {name: one.level for name, one in known.items() if one.level}


def log_received(line: LogLine, run: HasLogFields | None) -> None:
    """Log a line of a handler's process in the worker, as if it was written here."""
    logger = logging.getLogger(line.logger)
    if not logger.isEnabledFor(line.level):
        return
    record: dict[str, Any] = {
        **line.fields,
        "name": line.logger,
        "levelno": line.level,
        "levelname": logging.getLevelName(line.level),
        "msg": line.message,
        "args": None,
    }
    if line.exception is not None:
        record["exc_info"] = (RaisedInProcess, RaisedInProcess(f"\n{line.exception}"), None)
        record["exc_text"] = line.exception
    token = running.set(run if line.is_of_run else None)
    try:
        logger.handle(logging.makeLogRecord(record))
    finally:
        running.reset(token)
