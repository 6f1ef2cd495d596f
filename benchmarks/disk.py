"""Where benchmarks of a folder do their writing: on the project's own disk, not in a temporary file system."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, gone afterwards."""
    Path("build").mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir="build"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
