"""A job in every state there is, reached by verbs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasemill.kernel.commands import Lease
from leasemill.kernel.model import Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    acked,
    cancelled,
    claim_one,
    committed,
    enqueue_and_claim,
    enqueue_one,
    expired,
    failed_for_good,
    nacked,
    redrive,
    started,
)


def _ready(harness: Harness) -> None:
    enqueue_one(harness)


def _retrying(harness: Harness) -> None:
    nacked(harness, enqueue_and_claim(harness), jitter=0.5)


def _redriven(harness: Harness) -> None:
    failed_for_good(harness, enqueue_and_claim(harness))
    redrive(harness, "job")


def _leased(harness: Harness) -> Lease:
    return enqueue_and_claim(harness)


def _started(harness: Harness) -> Lease:
    lease = enqueue_and_claim(harness)
    started(harness, lease)
    return lease


def _committed(harness: Harness) -> Lease:
    lease = enqueue_and_claim(harness)
    committed(harness, lease, result=b'"result"')
    return lease


def _succeeded(harness: Harness) -> None:
    acked(harness, enqueue_and_claim(harness), b'"result"')


def _failed(harness: Harness) -> None:
    failed_for_good(harness, enqueue_and_claim(harness))


def _cancelled(harness: Harness) -> None:
    enqueue_one(harness)
    cancelled(harness)


def _cancelled_in_flight(harness: Harness) -> None:
    enqueue_and_claim(harness)
    cancelled(harness)


def _quarantined(harness: Harness) -> None:
    enqueue_one(harness, policy=Policy(max_expirations=1))
    lease = claim_one(harness)
    started(harness, lease)
    expired(harness, lease)


_WAYS: Final[dict[str, Callable[[Harness], Lease | None]]] = {
    "ready": _ready,
    "retrying": _retrying,
    "redriven": _redriven,
    "leased": _leased,
    "started": _started,
    "committed": _committed,
    "succeeded": _succeeded,
    "failed": _failed,
    "cancelled": _cancelled,
    "cancelled in flight": _cancelled_in_flight,
    "quarantined": _quarantined,
}

STATES: Final = tuple(_WAYS)


def job_in(harness: Harness, state: str) -> Lease | None:
    """Bring the job `job` into this state; returns its lease if it has one."""
    return _WAYS[state](harness)
