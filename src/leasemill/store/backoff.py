"""How long to leave a store alone that could not answer. Pure: the caller brings the random number."""

from __future__ import annotations

from typing import Final

SHORTEST_S: Final = 0.05
LONGEST_S: Final = 1.0


def backoff_s(failures: int, jitter: float) -> float:
    """Return how long to wait before the next call to a store that was unavailable `failures` times in a row."""
    ceiling = min(SHORTEST_S * (1 << min(failures - 1, 20)), LONGEST_S)
    return ceiling * (0.5 + jitter / 2)
