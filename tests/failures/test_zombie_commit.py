"""The zombie commit: a worker is stopped in the middle of a handler, loses its lease, and commits when it goes on.

Guard: a report counts only with the job's current token and before its lease has ended (L2, L3).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from leasemill.kernel.commands import Committed
from leasemill.kernel.model import LossReason, Verb
from leasemill.kernel.transitions import executions, fence
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    OTHER,
    WORKER,
    acked,
    claim_one,
    commit,
    committed,
    enqueue_and_claim,
    job_of,
    let_expire,
    refused,
    started,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, swap
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

TRIES: Final = 5
BROKEN = Path(__file__).resolve().parents[1] / "process" / "broken"


def who_commits(harness: Harness) -> list[str]:
    """A is stopped past its lease, B runs the job and commits, A goes on: whose commit returned?"""
    a = enqueue_and_claim(harness)
    started(harness, a)
    let_expire(harness, a)
    b = claim_one(harness, worker=OTHER)
    outcomes = {OTHER: commit(harness, b, result=b'"b"'), WORKER: commit(harness, a, result=b'"a"')}
    return [worker for worker, outcome in outcomes.items() if isinstance(outcome, Committed)]


def take_out_the_fence(patch: pytest.MonkeyPatch) -> None:
    """As tests/process/broken does in a process of its own: any token will do, at any time."""

    def execution_of(state: Any, event: Any) -> tuple[Any, Any]:
        job = state.jobs[event.job_id]
        return job, next(it for it in job.executions if it.token == event.token)

    swap(patch, fence.held, lambda execution, _now: execution is not None)
    for found in (executions.live, executions.reported, executions.reported_uncommitted):
        swap(patch, found, execution_of)


def test_reproduce_without_the_fence_both_commit_and_the_zombies_result_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out_the_fence(monkeypatch)
    assert who_commits(harness) == [OTHER, WORKER]
    job = job_of(harness)
    assert len([it for it in job.executions if it.committed_at is not None]) == 2, "X4 is broken"
    assert job.result == b'"a"', "the result of a run that had lost the job"


def test_reproduce_with_processes_without_the_fence_both_apply_the_effect(tmp_path: Path) -> None:
    """A worker also stops a handler whose lease it knows to be over; it may come in time. So: in one of a few tries."""
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as cleaning:
            if who_committed(Scene(f"file:{folder / 'jobs'}", folder, cleaning)) == ["b", "a"]:
                return
    pytest.fail(f"in {TRIES} tries the zombie was stopped before it committed")


def who_committed(scene: Scene) -> list[str]:
    """Nothing is read from the store at the end: without the fence its log does not even make sense any more."""
    path = f"{BROKEN}:{Path(__file__).resolve().parents[2]}"
    handle = jobs.waits_briefly.enqueue("first")
    a = scene.worker("a", "--queue", "hit", environment={"PYTHONPATH": path})
    scene.await_began(handle, a)
    a.stop(lambda: scene.trail.unfinished("a"))
    scene.worker("b", "--queue", "hit", environment={"PYTHONPATH": path})
    wait_until(lambda: scene.trail.marks("committed", worker="b", job=handle.id), "b to commit")
    scene.open_gate("first")
    a.resume()
    wait_until(lambda: not scene.trail.unfinished("a"), "the stopped handler to end")
    return [mark.worker for mark in scene.trail.marks("committed", job=handle.id)]


@rule("L2", "L4", "L5", "X4")
def test_prevent_with_it_the_zombie_is_refused_and_the_refusal_is_on_record(harness: Harness) -> None:
    assert who_commits(harness) == [OTHER]
    job = job_of(harness)
    assert job.result == b'"b"'
    assert [(it.verb, it.worker, it.reason) for it in job.refusals] == [(Verb.COMMIT, WORKER, LossReason.SUPERSEDED)]


@rule("L2", "L5")
def test_recover_a_zombie_that_outlived_who_gave_it_the_lease_is_refused_as_well(
    failing: FailingMachine,
) -> None:
    """Tokens, leases and what became of them are on disk, not in the memory of whoever gave them out."""
    a = enqueue_and_claim(failing)
    started(failing, a)
    let_expire(failing, a)
    b = claim_one(failing, worker=OTHER)
    committed(failing, b)
    failing.kill()
    refused(commit(failing, a), LossReason.SUPERSEDED)
    acked(failing, b)
    failing.lose_power()
    job = job_of(failing)
    assert [it.worker for it in job.executions if it.committed_at is not None] == [OTHER]
    assert [it.worker for it in job.refusals] == [WORKER]
