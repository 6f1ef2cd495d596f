"""What all shops share: an order, where the database is, and a run that stops in the middle of its commit."""

from __future__ import annotations

import os
import signal
import threading
from typing import Final, TypedDict

from msgspec import Struct

from tests.process.shops.money import CUSTOMERS, LEASE_S

URL: Final = os.environ.get("LEASEMILL_URL", "postgresql://")
"""The store's, and the shop's: one database."""
ROLLED_BACK_EVERY: Final = 10


class JobOptions(TypedDict):
    lease: float
    timeout: float
    retry: int
    max_expirations: int


OPTIONS: Final[JobOptions] = {"lease": LEASE_S, "timeout": 60, "retry": 50, "max_expirations": 1_000}


class Order(Struct, frozen=True):
    id: str
    customer: str
    cents: int
    is_sleepy: bool = False
    """Its first run is stopped before its COMMIT, by itself, for the lab to resume."""

    @property
    def is_rolled_back(self) -> bool:
        """Whether the transaction that places it, and enqueues its job, is rolled back."""
        return not self.is_sleepy and int(self.id.rpartition("-")[2]) % ROLLED_BACK_EVERY == 7


def drawn(name: str, number: int, *, is_sleepy: bool = False) -> Order:
    return Order(f"{name}-{number}", CUSTOMERS[number % len(CUSTOMERS)], 100 + number * 37 % 9_900, is_sleepy)


def fall_asleep(order: Order, attempt: int) -> None:
    """In the middle of a commit, with everything written: the whole process stops until somebody resumes it. It is this
    thread that gets the signal, so that it does not go on for a moment while another one handles it."""
    if order.is_sleepy and attempt == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
