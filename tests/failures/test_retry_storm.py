"""The retry storm: a service is down, every job that calls it fails at the same moment, and all come back together.

Guard: a random part of the back-off (F1), and an end to retries (F2).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from leasemill.kernel.model import SECOND, JobState, Policy
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import QUEUE, claim, every_job, nack, nacked, spec
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, replace, without

JOBS = 300
RETRIES = 6
WINDOW_US = SECOND // 10
MOST_CALLS = 2 * JOBS * (1 + RETRIES)


def enqueue_all(harness: Harness) -> None:
    policy = Policy(max_retries=RETRIES)
    harness.store.enqueue([spec(f"job-{number}", policy=policy) for number in range(JOBS)])


def outage(harness: Harness) -> list[int]:
    """The service is down until nobody calls it any more (or for very long): when it was called."""
    drawn = random.Random(1)
    calls: list[int] = []
    while (due_in_us := harness.store.due_in([QUEUE])) is not None and len(calls) < MOST_CALLS:
        harness.clock.advance(us=due_in_us)
        for lease in claim(harness, JOBS):
            calls.append(harness.clock.now())
            nack(harness, lease, "ConnectionError: down", jitter=drawn.random())
    return calls


def busiest(calls: list[int]) -> int:
    """How many retries fell into the busiest tenth of a second, the first calls left out."""
    began = calls[0]
    return max(Counter((at - began) // WINDOW_US for at in calls if at > began).values())


def test_reproduce_without_the_random_part_all_jobs_come_back_at_the_same_moment(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(
        monkeypatch, "leasemill.kernel.transitions.retry", "    return int(ceiling * jitter)\n", "    return ceiling\n"
    )
    enqueue_all(harness)
    calls = outage(harness)
    assert busiest(calls) == JOBS, "every job, in one tenth of a second"
    assert len(set(calls)) == 1 + RETRIES, "again and again"


def test_reproduce_without_an_end_the_storm_never_ends(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "retries have no bound")
    enqueue_all(harness)
    assert len(outage(harness)) >= MOST_CALLS


@rule("F1", "F2")
def test_prevent_with_both_retries_are_spread_and_end(harness: Harness) -> None:
    enqueue_all(harness)
    calls = outage(harness)
    assert busiest(calls) < JOBS / 3, "the first retries are within half a second, so some of them meet"
    later = [at for at in calls if at > calls[0] + 4 * SECOND]
    assert busiest([calls[0], *later]) < JOBS / 10, "later ones hardly do"
    assert len(calls) == JOBS * (1 + RETRIES)
    assert {job.state for job in every_job(harness)} == {JobState.FAILED}


@rule("F1")
def test_recover_a_restart_in_the_middle_does_not_bring_the_retries_forward(failing: FailingMachine) -> None:
    enqueue_all(failing)
    drawn = random.Random(2)
    for lease in claim(failing, JOBS):
        nacked(failing, lease, jitter=drawn.random())
    before = {job.spec.id: (job.available_at, job.retries) for job in every_job(failing)}
    assert len({at for at, _ in before.values()}) > JOBS * 0.9
    failing.lose_power()
    assert {job.spec.id: (job.available_at, job.retries) for job in every_job(failing)} == before
    assert len(claim(failing, JOBS)) < JOBS / 10
