"""A process that forks after it has used a store: parent and child both go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def forked(url: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.process.forking", url]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_calls_watches_and_commits_work_in_a_forked_child_and_in_its_parent(scheme: str, tmp_path: Path) -> None:
    done = forked("memory:" if scheme == "memory" else f"file:{tmp_path}")
    assert done.returncode == 0, done.stderr
