"""The version before rules, from its wheel: what it does with a store of this one.

`tests/older` has the wheel as it was built, never to be built again: it stands for the processes that are out there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

WHEEL: Final = Path(__file__).parents[1] / "older" / "leasemill-0.1.0-py3-none-any.whl"


class OlderProcess:
    """A process of the version before, that is sent statements and returns what they print.

    It runs in this interpreter's environment, with the package from the wheel in front.
    """

    def __init__(self, folder: Path) -> None:
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )

    def does(self, statements: str) -> str:
        """What these print; or the name of the error that they raise, and what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(repr(statements) + "\n")
        self._process.stdin.flush()
        answer: str = eval(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


LOOP: Final = """
import contextlib, io, sys
known = {}
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(eval(line), known)
        answer = printed.getvalue().strip()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print(repr(answer), flush=True)
"""
