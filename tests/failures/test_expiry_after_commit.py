"""The lease that runs out between commit and ack: the effect is applied, and nobody has reported the end of the job.

Guard: after COMMITTED a job can only succeed; expiry finishes it instead of giving it out again (X5).
"""

from __future__ import annotations

import pytest

from leasemill.kernel.model import ExecutionStatus, JobState, Verb
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    claim_nothing,
    committed,
    enqueue_and_claim,
    job_of,
    let_expire,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, effects_after_commit, environment_without, without
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

GUARD = "expiry after commit gives the job back"
GUARD_OF_DEATHS = "a death after the commit gives the job back"


def test_reproduce_without_it_the_job_runs_again_and_its_effect_is_applied_twice(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    assert effects_after_commit(harness, let_expire) == ["worker-1", "worker-2"]
    assert len([it for it in job_of(harness).executions if it.committed_at is not None]) == 2, "X4 is broken"


def test_reproduce_with_processes_without_it_a_second_worker_applies_the_effect_again(scene: Scene) -> None:
    handle = jobs.commits_and_waits.enqueue()
    a = scene.worker("a", "--queue", "hit", environment=environment_without(GUARD, GUARD_OF_DEATHS))
    wait_until(lambda: scene.trail.marks("committed", job=handle.id), "the commit")
    a.kill()
    scene.worker("b", "--queue", "hit", environment=environment_without(GUARD, GUARD_OF_DEATHS))
    wait_until(lambda: len(scene.trail.marks("committed", job=handle.id)) == 2, "the second commit")
    assert [mark.worker for mark in scene.trail.marks("committed", job=handle.id)] == ["a", "b"]


@rule("X5", "X4")
def test_prevent_with_it_expiry_finishes_the_job(harness: Harness) -> None:
    assert effects_after_commit(harness, let_expire) == ["worker-1"]
    job = job_of(harness)
    assert job.state is JobState.SUCCEEDED
    assert [(it.status, it.ended_by) for it in job.executions] == [(ExecutionStatus.DONE, Verb.EXPIRE)]


@rule("X5", "E1")
def test_recover_after_a_power_failure_between_the_two_the_job_is_finished_not_run(failing: FailingMachine) -> None:
    lease = enqueue_and_claim(failing)
    committed(failing, lease, result=b'"paid"')
    failing.lose_power()  # nobody of an earlier boot holds anything any more
    claim_nothing(failing)
    failing.lose_power()
    job = job_of(failing)
    assert (job.state, job.attempt, job.result) == (JobState.SUCCEEDED, 1, b'"paid"')
    assert job.executions[-1].ended_by is Verb.EXPIRE
