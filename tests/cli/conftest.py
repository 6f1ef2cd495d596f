"""Commands set up logging for their process; tests share one, so it is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def logging_kept() -> Iterator[None]:
    """For fixtures of more than one test, which begin before the one below."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    with logging_kept():
        yield
