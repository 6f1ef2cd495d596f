"""Clocks that are far from the store's: which workers have one, and how it is said. Nothing is decided by them (L8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasemill.kernel.model import SECOND
from leasemill.operator.times import span
from leasemill.store.records import WorkerRecord

APART_S: Final = 60.0
"""From here on the clock of a worker's machine is reported. Clocks that a time service keeps differ by far less."""


def are_apart(ahead_s: float) -> bool:
    return abs(ahead_s) >= APART_S


def clocks_apart(workers: Iterable[WorkerRecord]) -> dict[str, float]:
    """By worker, how many seconds its machine's clock is ahead of the store's (negative: behind), if it is reported."""
    return {one.worker: one.clock_ahead_s for one in workers if are_apart(one.clock_ahead_s)}


def ahead_or_behind(ahead_s: float) -> str:
    return f"{span(round(abs(ahead_s) * SECOND))} {'ahead of' if ahead_s > 0 else 'behind'}"
