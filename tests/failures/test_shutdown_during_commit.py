"""The shutdown during commit: a deployment stops a worker whose handler has just committed, or is about to.

Guard: a worker that gives its jobs back cannot give back what has committed (X5); commit is one record (X6).
"""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from leasemill.kernel.commands import Followup
from leasemill.kernel.model import ExecutionStatus, JobState, Verb
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    OTHER,
    acked,
    claim,
    claim_nothing,
    committed,
    enqueue_and_claim,
    job_of,
    release,
    started,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, effects_after_commit, environment_without, without
from tests.lab.faults import SimulatedCrash
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

GUARD = "release after commit gives the job back"
FOLLOWUPS = [Followup("receipts", "receipt"), Followup("receipts", "receipt")]


def test_reproduce_without_it_a_committed_job_is_given_back_and_runs_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    assert effects_after_commit(harness, release) == ["worker-1", "worker-2"]
    assert len([it for it in job_of(harness).executions if it.committed_at is not None]) == 2, "X4 is broken"


def test_reproduce_with_processes_without_it_a_deployment_applies_the_effect_again(scene: Scene) -> None:
    handle = jobs.commits_and_listens.enqueue()
    options = ("--queue", "hit", "--shutdown-timeout", "0.2")
    a = scene.worker("a", *options, environment=environment_without(GUARD))
    wait_until(lambda: scene.trail.marks("committed", job=handle.id), "the commit")
    assert a.end() == 0
    scene.worker("b", *options, environment=environment_without(GUARD))
    wait_until(lambda: len(scene.trail.marks("committed", job=handle.id)) == 2, "the second commit")
    assert [mark.worker for mark in scene.trail.marks("committed", job=handle.id)] == ["a", "b"]


@rule("X5", "X4")
def test_prevent_with_it_giving_back_finishes_what_has_committed(harness: Harness) -> None:
    assert effects_after_commit(harness, release) == ["worker-1"]
    job = job_of(harness)
    assert (job.state, job.executions[-1].ended_by) == (JobState.SUCCEEDED, Verb.RELEASE)


@rule("X5")
@pytest.mark.parametrize("signals", [1, 2], ids=["one signal", "two signals"])
def test_prevent_with_a_process_that_is_stopped_behind_its_commit(scene: Scene, signals: int) -> None:
    """The handler has committed and goes on for longer than the worker may take to stop."""
    handle = jobs.commits_and_waits.enqueue()
    a = scene.worker("a", "--queue", "hit", "--shutdown-timeout", "0.2")
    wait_until(lambda: scene.trail.marks("committed", job=handle.id), "the commit")
    for _ in range(signals - 1):
        a.signal(signal.SIGTERM)
        scene.await_logged(a, "stopping: waiting for running jobs")
    assert a.end() == 0
    b = scene.worker("b")
    job = scene.check_applied_once(handle, by=a)
    assert (job.attempt, job.executions[-1].status) == (1, ExecutionStatus.DONE)
    scene.still_works()
    assert len(scene.trail.marks("began", job=handle.id)) == 1, "nobody ran it again"
    assert b.end() == 0


@rule("X6", "X4")
def test_recover_a_process_that_dies_anywhere_in_a_commit_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    came_to = []
    has_died = True
    for operation in range(1, 50):
        failing = FailingMachine(tmp_path, seed=operation)
        lease = enqueue_and_claim(failing)
        started(failing, lease)
        failing.machine.crash_at(operation, failing.disk)
        with suppress(SimulatedCrash):
            committed(failing, lease, followups=FOLLOWUPS)
            has_died = False
        failing.lose_power()
        came_to.append(check_all_or_nothing(failing))
        failing.close()
        if not has_died:
            break
    assert not has_died, "it was killed at every operation of a commit"
    assert set(came_to) == {"all", "nothing"}


def check_all_or_nothing(failing: FailingMachine) -> str:
    """What is there, and that the job comes to its end with one effect."""
    job = job_of(failing)
    there = [failing.store.job(f"job/{index}") is not None for index in range(len(FOLLOWUPS))]
    is_committed = job.executions[-1].committed_at is not None
    assert there == [is_committed] * len(FOLLOWUPS)
    for again in claim(failing, worker=OTHER):
        assert not is_committed
        committed(failing, again, followups=FOLLOWUPS)
        acked(failing, again)
    claim_nothing(failing)
    job = job_of(failing)
    assert job.state is JobState.SUCCEEDED
    assert len([it for it in job.executions if it.committed_at is not None]) == 1
    return "all" if is_committed else "nothing"
