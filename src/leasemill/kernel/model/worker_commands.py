"""What an operator can ask of a worker, and what was asked last of each of its processes (O12). Pure data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

WORKER_COMMANDS_KEPT: Final = 1_000
"""Instances of workers whose latest order is kept."""


class Order(StrEnum):
    """What a worker can be asked to do: claim no more jobs, claim again, or stop."""

    QUIET = "quiet"
    RESUME = "resume"
    STOP = "stop"


class WorkerOrder(Struct, frozen=True, gc=False):
    """What was last asked of one process of a worker."""

    instance: str
    order: Order
    at: int
    by: str
    reason: str
