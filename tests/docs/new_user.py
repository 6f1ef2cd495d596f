"""`make check-wheel`: the path of a new user. A new environment, the built wheel, an empty folder, the README.

Every block of it is run as printed. With `--guides` the same for every page, each in an environment that has what the
page says (*To run the examples: `pip install …`*) and nothing else. It needs the package index for what the wheel
depends on, so it is no part of `make test`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Final

from leasemill import __version__
from tests.docs.pages import PAGES, ROOT, RUN, blocks, commands
from tests.docs.running import Mismatch, PageRun

NEEDED: Final = re.compile(r"^To run the examples: `pip install ([^`]+)`\.$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    wheels = sorted(ROOT.glob(f"dist/leasemill-{__version__}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        return report("there is no wheel in dist/: run make wheel", 1)
    if "--guides" not in arguments:
        return followed(ROOT / "README.md", wheels[-1])
    asked = [name for name in arguments if name != "--guides"]
    pages = [page for page in PAGES if not asked or page.stem in asked]
    return max(followed(page, wheels[-1]) for page in pages if any(block.language in RUN for block in blocks(page)))


def needed(page: Path) -> list[str]:
    """What the page says its examples need, with Leasemill itself."""
    found = NEEDED.search(page.read_text())
    return ["leasemill"] if found is None else shlex.split(found[1])


def followed(page: Path, wheel: Path) -> int:
    name = str(page.relative_to(ROOT))
    with tempfile.TemporaryDirectory(prefix="leasemill-new-user-") as place:
        began = time.monotonic()
        Path(place).chmod(0o755)  # a temporary PostgreSQL does not run as root, and its programs are here
        environment, folder = Path(place, "environment"), Path(place, "empty")
        if page.parent.parent.name == "examples":
            shutil.copytree(page.parent, folder, ignore=shutil.ignore_patterns("__pycache__", ".leasemill"))
        else:
            folder.mkdir()
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        wanted = [re.sub(r"^leasemill\b", str(wheel), one) for one in needed(page)]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
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
        report(f"{wheel.name} installed in a new environment after {time.monotonic() - began:.1f} s")
        with PageRun(page, folder, python) as run:
            try:
                run.run()
            except Mismatch as mismatch:
                return report(f"{name} does not work as printed: {mismatch}", 1)
        for block in run.ran:
            shown = (
                [f"$ {command.text}" for command in commands(block)] if block.language == "console" else [block.title]
            )
            report(f"  {block.where}: {block.language} {', '.join(filter(None, shown))}")
        assert run.ran == [block for block in blocks(page) if block.language in RUN]
        return report(f"{name} works as printed: {len(run.ran)} blocks", 0)


def report(text: str, exit_code: int = 0) -> int:
    (sys.stderr if exit_code else sys.stdout).write(f"{text}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
