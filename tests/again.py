"""Runs the tests that failed in the latest run again, alone, five times: python -m tests.again

A test may fail because the machine stood still, or because of a race that is a fault of ours. Beside hundreds of others
nobody can tell; alone and repeated, most races show again. All of them must pass each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
ROUNDS = 5
MOST = 8
"""More than these are not the machine's doing."""


def main() -> None:
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not failed:
        sys.exit("again: no test failed in the latest run, so its error is another one")
    if len(failed) > MOST:
        sys.exit(f"again: {len(failed)} tests failed, which no stalled machine explains")
    for number in range(1, ROUNDS + 1):
        print(f"again, {number} of {ROUNDS}: " + ", ".join(failed), flush=True)  # noqa: T201
        run = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed], check=False)
        if run.returncode:
            sys.exit(run.returncode)


if __name__ == "__main__":
    main()
