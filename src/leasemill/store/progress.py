"""How a long operation reports how far it is. What is done with the numbers is the caller's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and of how much; now and then, not for each item."""


def not_shown(_done: int, _total: int) -> None:
    """Nobody wants to know."""
