"""`make check-wheel`: the path of a new user. A new environment, the built wheel, an empty folder, the README.

Every block of it is run as printed. It needs the package index for the wheel's dependencies, so it is no part of
`make test`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from leasemill import __version__
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.running import Mismatch, PageRun


def main() -> int:
    page = ROOT / "README.md"
    wheels = sorted(ROOT.glob(f"dist/leasemill-{__version__}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        return report("there is no wheel in dist/: run make wheel", 1)
    with tempfile.TemporaryDirectory(prefix="leasemill-new-user-") as name:
        began = time.monotonic()
        environment, folder = Path(name, "environment"), Path(name, "empty")
        folder.mkdir()
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheels[-1])]
        subprocess.run(install, cwd=folder, check=True)
        where = subprocess.run(
            [python, "-c", "import leasemill; print(leasemill.__file__)"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        if not where.startswith(str(environment)):
            return report(f"leasemill was imported from {where.strip()}, not from the wheel", 1)
        report(f"{wheels[-1].name} installed in a new environment after {time.monotonic() - began:.1f} s")
        with PageRun(page, folder, python) as run:
            try:
                run.run()
            except Mismatch as mismatch:
                return report(str(mismatch), 1)
        for block in run.ran:
            shown = (
                [f"$ {command.text}" for command in commands(block)] if block.language == "console" else [block.title]
            )
            report(f"  {block.where}: {block.language} {', '.join(filter(None, shown))}")
        assert run.ran == blocks(page)
        return report(f"{page.name} works as printed: {len(run.ran)} blocks", 0)


def report(text: str, exit_code: int = 0) -> int:
    (sys.stderr if exit_code else sys.stdout).write(f"{text}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
