"""The leaked place: a limit whose places are held by jobs that are gone, or given back twice.

Guard: the record that ends a lease is what frees its places (T1, T3).
"""

from __future__ import annotations

import pytest

from leasemill.kernel.model import LossReason
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.limits import counts, ids, set_limit, under
from leasemill.testing.conformance.steps import (
    ack,
    acked,
    claim,
    claim_ids,
    claim_nothing,
    enqueue_many,
    let_expire,
    refused,
    release,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, without

GUARD = "the end of a lease gives no place back"
RULES = under("stripe", "other/key")


def two_places_and_six_jobs(harness: Harness) -> None:
    set_limit(harness, "stripe", places=2)
    set_limit(harness, "other", places=2)
    enqueue_many(harness, *(f"job-{number}" for number in range(6)), rules=RULES)


def test_reproduce_places_that_nobody_gives_back_are_gone_for_ever(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    two_places_and_six_jobs(harness)
    for lease in claim(harness, 6):
        acked(harness, lease)
    harness.clock.advance(s=3_600)
    claim_nothing(harness)
    assert counts(harness) == (2, 4), "nobody works, four jobs wait, and two places are held"


@rule("T1", "T3")
def test_prevent_every_end_gives_the_places_back_once(harness: Harness) -> None:
    two_places_and_six_jobs(harness)
    first, second = claim(harness, 6)
    acked(harness, first)
    assert claim_ids(harness) == ["job-2"]
    let_expire(harness, second)
    held = claim(harness, 6)
    assert ids(held) == ["job-1", "job-2"]
    for late in (first, second):
        for report in (ack, release):
            report(harness, late)
    claim_nothing(harness)
    assert counts(harness) == counts(harness, "other") == (2, 3)


@rule("T3", "L2")
def test_prevent_a_worker_that_comes_back_late_gives_back_nothing(harness: Harness) -> None:
    two_places_and_six_jobs(harness)
    lost = claim(harness, 6, worker="paused")
    let_expire(harness, lost[0])
    assert ids(claim(harness, 6)) == ["job-0", "job-1"]
    for lease in lost:
        refused(ack(harness, lease), LossReason.SUPERSEDED)
    claim_nothing(harness)


@rule("T1", "T3")
def test_recover_who_holds_a_place_follows_from_the_leases_after_a_loss_of_power(failing: FailingMachine) -> None:
    two_places_and_six_jobs(failing)
    first, _ = claim(failing, 6)
    failing.kill()
    assert counts(failing) == (2, 4)
    claim_nothing(failing)
    acked(failing, first)
    failing.lose_power()
    assert claim_ids(failing) == ["job-1", "job-2"], "no lease outlives the machine, and no place does"
    assert counts(failing) == counts(failing, "other") == (2, 3)
