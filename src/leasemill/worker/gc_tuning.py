"""How often Python looks for garbage while a worker runs.

A job makes many objects that the collector counts, and thousands of jobs are held at a time: with the
interpreter's thresholds a busy worker spends a tenth of its time looking through objects that are in use. What must
never happen here: a threshold that the program has chosen is changed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERPRETERS: Final = frozenset({700, 2_000})
"""How many new objects make Python look, by default: 3.11 to 3.13, 3.14."""
WORKERS: Final = 10_000


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look through the youngest objects after 10,000 of them, if nobody has chosen otherwise."""
    before = gc.get_threshold()
    if before[0] not in INTERPRETERS:
        yield
        return
    gc.set_threshold(WORKERS, *before[1:])
    try:
        yield
    finally:
        if gc.get_threshold()[0] == WORKERS:
            gc.set_threshold(*before)
