"""A command in a terminal of its own: keys are sent to it, and what it shows can be read.

Knows as much of a terminal as the command line uses: text, cursor movements, erasing, the alternate screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from leasemill.demo.workers import wait_until

ENTER_SCREEN: Final = "\x1b[?1049h"
LEAVE_SCREEN: Final = "\x1b[?1049l"
HIDE_CURSOR: Final = "\x1b[?25l"
SHOW_CURSOR: Final = "\x1b[?25h"
_CONTROL: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07")


def _own_environment() -> dict[str, str]:
    """Without the size of the terminal that the tests run in, which pytest sets for its processes."""
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    return {**kept, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}


def _take_terminal() -> None:
    """In the new process. Tests that a shell has started in the background would pass on that Ctrl-C is ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """`leasemill ARGUMENTS` with standard input, output and error in one terminal; `stdout`: output goes there."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        columns: int = 80,
        rows: int = 24,
        environment: Mapping[str, str] | None = None,
        stdout: Path | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self.resize(columns, rows, theirs)
        output = None if stdout is None else stdout.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leasemill", *arguments],
            stdin=theirs,
            stdout=output or theirs,
            stderr=theirs,
            cwd=cwd,
            env={**_own_environment(), **(environment or {})},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (nothing else sets the terminal that Ctrl-C is of)
        )
        if output is not None:
            output.close()
        self._theirs = theirs
        self.text = ""
        """All that was written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def settings(self) -> list[object]:
        """As they are now: whether keys are echoed, and so on."""
        return termios.tcgetattr(self._theirs)

    def resize(self, columns: int, rows: int, terminal: int | None = None) -> None:
        self._columns, self._rows = columns, rows
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours if terminal is None else terminal, termios.TIOCSWINSZ, size)
        if terminal is None:
            os.killpg(self.process.pid, signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self) -> str:
        while select.select([self._ours], [], [], 0.05)[0]:
            try:
                self.text += os.read(self._ours, 65_536).decode(errors="replace")
            except OSError:  # nobody has it open any more
                break
        return self.text

    def await_text(self, *texts: str) -> str:
        """Wait until the screen shows all of these."""
        wait_until(lambda: all(text in self.shown() for text in texts), f"the terminal to show {texts}")
        return self.shown()

    def await_end(self) -> int:
        def has_ended() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(has_ended, "the command to end")
        self.read()
        return self.process.returncode

    def shown(self) -> str:
        """The lines of the screen, as they stand now."""
        return "\n".join(screen(self.read(), self._columns, self._rows))


def screen(text: str, columns: int, rows: int) -> list[str]:
    """What a terminal of this size shows after this was written to it. Raises ValueError at a code it does not know."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(text):
        control = _CONTROL.match(text, at)
        if control:
            at = control.end()
            match control[2], control[1] or "":
                case ("H", "" | "1;1"):
                    row, column = 0, 0
                case ("A", number):
                    row = max(0, row - int(number or 1))
                case ("J", _) | ("h" | "l", "?1049"):
                    lines, row, column = [""], 0, 0
                case ("K", _):
                    lines[row] = ""
                case ("m" | "h" | "l", _) | (None, _):
                    pass
                case code:
                    raise ValueError(f"unknown control code {code}")
            continue
        one, at = text[at], at + 1
        if one == "\r":
            column = 0
        elif one == "\n":
            row, column = row + 1, 0 if text[at - 2] != "\n" else column
            if row >= rows:
                lines.pop(0)
                row = rows - 1
            lines += [""] * (row + 1 - len(lines))
        elif one >= " ":
            if column >= columns:
                raise ValueError(f"a line is longer than the terminal: {lines[row]!r}")
            lines[row] = lines[row][:column].ljust(column) + one + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
