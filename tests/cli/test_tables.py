"""Tables: plain text for pipes, styled for terminals, and never cut off."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from leasemill.cli.output import print_table

COLUMNS = ("id", "state", "error")
ROWS = [("0" * 60, "failed", "[red] ValueError: no"), ("short", "-", "")]
PROGRAM = f"from leasemill.cli.output import print_table; print_table({COLUMNS!r}, {ROWS!r})"


def test_a_pipe_gets_plain_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        f"{'id':<60}  state   error",
        f"{'0' * 60}  failed  [red] ValueError: no",
        f"{'short':<60}  -",
    ]


def test_a_narrow_terminal_gets_styles_and_every_character() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = _everything(ours)
    assert process.returncode == 0
    assert "\x1b[31mfailed" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [line.split() for line in plain.splitlines()] == [
        ["id", "state", "error"],
        ["0" * 60, "failed", "[red]", "ValueError:", "no"],
        ["short", "-"],
    ]


def _everything(terminal: int) -> str:
    content = b""
    try:
        while some := os.read(terminal, 4096):
            content += some
    except OSError:
        pass  # Linux reports the end of a terminal so
    os.close(terminal)
    return content.decode()


def test_help_does_not_wait_for_the_import_of_rich() -> None:
    program = "import sys; from leasemill.cli import main; import leasemill.cli.jobs; assert 'rich' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
