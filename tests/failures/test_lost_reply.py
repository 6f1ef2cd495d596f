"""The lost reply: the commit is on record, and the answer to it never arrives. The worker must ask again.

Guard: what a token achieved is looked at before anything else, so its repeat gets the same answer (L6).
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from leasemill import App, Context
from leasemill.kernel import commands as c
from leasemill.kernel.model import ExecutionStatus, JobState
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    acked,
    claim_nothing,
    commit,
    committed,
    enqueue_and_claim,
    expired,
    job_of,
    started,
    state_of,
)
from leasemill.testing.drain import drain
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, without
from tests.lab.faults import Operation, SimulatedCrash, SimulatedDisk
from tests.worker.support import FaultyStore

RECEIPT = c.Followup("receipts", "receipt")
GUARD = "a repeated commit commits again"


def repeated_in_time(harness: Harness) -> list[bool]:
    """The answer is lost and the call repeated at once: which of the two counted as a commit of its own?"""
    lease = enqueue_and_claim(harness)
    started(harness, lease)
    return [not committed(harness, lease, followups=[RECEIPT]).is_repeat for _ in range(2)]


def repeated_too_late(harness: Harness) -> c.CommitOutcome:
    """The answer is lost, and when the worker gets through again its lease is over."""
    lease = enqueue_and_claim(harness)
    committed(harness, lease, followups=[RECEIPT])
    expired(harness, lease)
    return commit(harness, lease, followups=[RECEIPT])


def test_reproduce_without_it_the_repeat_is_a_second_commit(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, GUARD)
    assert repeated_in_time(harness) == [True, True]


def test_reproduce_without_it_a_worker_learns_that_what_happened_did_not(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    assert isinstance(repeated_too_late(harness), c.Lost)
    assert state_of(harness) is JobState.SUCCEEDED, "it did happen; whoever compensates now does so wrongly"


@rule("L6", "X4")
def test_prevent_with_it_the_repeat_gets_the_same_answer_and_adds_nothing(harness: Harness) -> None:
    assert repeated_in_time(harness) == [True, False]


@rule("L6", "X5")
def test_prevent_with_it_the_answer_is_the_same_after_the_lease_is_over(harness: Harness) -> None:
    assert repeated_too_late(harness) == c.Committed("job", ("job/0",), is_repeat=True)


@rule("L6")
def test_prevent_in_a_worker_the_handler_does_not_notice() -> None:
    app, store = App("memory:"), FaultyStore()
    runs: list[int] = []

    @app.job
    def receipt() -> None: ...

    @app.job
    def pay(ctx: Context) -> None:
        runs.append(ctx.attempt)
        with ctx.commit() as tx:
            tx.enqueue(receipt)

    store.fail(c.Commit, "after")
    with app.bound_to(store):
        job = pay.options(job_id="job").enqueue()
        drain(app)
        assert (job.status(), runs) == (JobState.SUCCEEDED, [1])
        assert len(store.commands(c.Commit)) == 2
        assert store.job("job/1") is None


@rule("L6", "X5")
def test_recover_a_process_that_dies_with_the_answer_leaves_the_commit(failing: FailingMachine) -> None:
    lease = enqueue_and_claim(failing)
    started(failing, lease)

    def die_when_synced(disk: SimulatedDisk, operation: Operation, name: str) -> None:
        failing.machine.kill(disk)
        raise SimulatedCrash

    failing.machine.after = die_when_synced
    with suppress(SimulatedCrash):
        commit(failing, lease, followups=[RECEIPT])
    failing.kill()
    assert job_of(failing).executions[-1].status is ExecutionStatus.COMMITTED
    assert committed(failing, lease, followups=[RECEIPT]).is_repeat, "asked again, it is the same commit"
    acked(failing, lease)
    claim_nothing(failing)
    assert [failing.store.job(f"job/{index}") is not None for index in (0, 1)] == [True, False]
