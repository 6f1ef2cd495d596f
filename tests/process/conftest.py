"""A scene for each process test, on a store of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.support import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as cleaning:
        yield Scene(f"file:{tmp_path / 'jobs'}", tmp_path, cleaning)
