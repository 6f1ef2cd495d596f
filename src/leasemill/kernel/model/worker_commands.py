"""The commands of operators to workers, and the last one to each process of a worker (O12). Pure data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

WORKER_COMMANDS_KEPT: Final = 1_000
"""Instances of workers whose latest order is kept."""


class Order(StrEnum):
    """A command to a worker: claim no more jobs, claim again, or stop."""

    QUIET = "quiet"
    RESUME = "resume"
    STOP = "stop"


class WorkerOrder(Struct, frozen=True, gc=False):
    """The last command to one process of a worker."""

    instance: str
    order: Order
    at: int
    by: str
    reason: str
