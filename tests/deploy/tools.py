"""Programs that are not Python's, and may not be there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

MUST_VARIABLE: Final = "LEASEMILL_TEST_DEPLOY_TOOLS"
"""Set by `make check-deploy`: a program that is missing is then a failure."""


def run_tool(name: str, package: str, *arguments: str, folder: Path) -> str:
    """What it printed. Fails if it does, skips the test if it is not there."""
    if shutil.which(name) is None:
        reason = f"{name} is missing: install Debian's package {package}"
        if os.environ.get(MUST_VARIABLE):
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run([name, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed
