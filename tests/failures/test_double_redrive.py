"""The double redrive: two operators, or one script that is run again, redrive the same failed jobs.

Guard: redrive takes FAILED and DEAD jobs only, decided in the same step as the change (O2).
"""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState, Verb
from leasemill.kernel.verbs import redrive as redrive_verb
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    OTHER,
    QUEUE,
    acked,
    claim,
    claim_one,
    committed,
    enqueue_and_claim,
    every_job,
    failed_for_good,
    job_of,
    redrive,
    spec,
    started,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, accept_every_event

JOBS = 20
PAGE = 6


def holders(harness: Harness) -> list[str]:
    """The job is redriven, a worker takes it, and it is redriven again. Who holds it now?"""
    failed_for_good(harness, enqueue_and_claim(harness))
    redrive(harness, "job")
    first = claim_one(harness)
    started(harness, first)
    redrive(harness, "job")
    return [first.worker, *(lease.worker for lease in claim(harness, worker=OTHER))]


def effects(harness: Harness) -> int:
    """The job is redriven and succeeds, and is redriven again. How often is its effect applied?"""
    failed_for_good(harness, enqueue_and_claim(harness))
    for _ in range(2):
        redrive(harness, "job")
        for lease in claim(harness):
            committed(harness, lease)
            acked(harness, lease)
    return len([it for it in job_of(harness).executions if it.committed_at is not None])


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job that is named is redriven, whatever its state."""
    monkeypatch.setattr(redrive_verb, "REDRIVEN_STATES", frozenset(JobState))
    accept_every_event(monkeypatch)


@pytest.mark.usefixtures("unguarded")
def test_reproduce_without_it_a_running_job_is_given_to_a_second_worker(harness: Harness) -> None:
    assert holders(harness) == ["worker-1", "worker-2"], "C7: in two hands"


@pytest.mark.usefixtures("unguarded")
def test_reproduce_without_it_a_job_that_succeeded_is_applied_again(harness: Harness) -> None:
    assert effects(harness) == 2, "X4 is broken"


@rule("O2", "C7")
def test_prevent_with_it_a_running_job_stays_where_it_is(harness: Harness) -> None:
    assert holders(harness) == ["worker-1"]


@rule("O2", "O8", "X4")
def test_prevent_with_it_what_has_succeeded_is_left_alone_and_one_act_is_on_record(harness: Harness) -> None:
    assert effects(harness) == 1
    assert [act.verb for act in harness.store.actions()] == [Verb.REDRIVE]


@rule("O2", "O6")
def test_recover_a_redrive_that_died_on_the_way_is_run_again_and_takes_the_rest(failing: FailingMachine) -> None:
    failing.store.enqueue([spec(f"job-{number:02}") for number in range(JOBS)])
    for lease in claim(failing, JOBS):
        failed_for_good(failing, lease)
    failed = JobFilter(queue=QUEUE, states=frozenset({JobState.FAILED}))
    first = failing.store.redrive(failed, by="ann", reason="repaired", limit=PAGE)
    assert (len(first.job_ids), first.after is not None) == (PAGE, True)
    failing.lose_power()
    for lease in claim(failing, PAGE):
        acked(failing, lease)
    rest = failing.store.redrive(failed, by="ann", reason="repaired", limit=JOBS)
    assert (len(rest.job_ids), rest.after) == (JOBS - PAGE, None)
    assert set(rest.job_ids).isdisjoint(first.job_ids)
    for lease in claim(failing, JOBS):
        acked(failing, lease)
    assert {(job.state, job.attempt) for job in every_job(failing)} == {(JobState.SUCCEEDED, 2)}
