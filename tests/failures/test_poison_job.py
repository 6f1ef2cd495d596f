"""The poison job: whoever runs it dies (out of memory, a crash in a library), so nobody ever reports it.

Guard: expirations of started runs are counted, and the last one allowed sets the job aside (F4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from leasemill import JobHandle
from leasemill.kernel.model import JobState, Policy
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import (
    acked,
    claim,
    claim_nothing,
    enqueue_many,
    enqueue_one,
    expired,
    job_of,
    only,
    redrive,
    started,
    state_of,
)
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, environment_without, without
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

WORKERS = 30
GUARD = "nobody is quarantined"


def deaths(harness: Harness) -> int:
    """Worker after worker takes the job and dies of it: how many of 30."""
    enqueue_one(harness, "poison", policy=Policy(max_expirations=5))
    for count in range(WORKERS):
        leases = claim(harness, worker=f"worker-{count}")
        if not leases:
            return count
        started(harness, only(leases))
        expired(harness, only(leases))
    return WORKERS


def test_reproduce_without_the_count_it_kills_every_worker_there_is(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, GUARD)
    assert deaths(harness) == WORKERS
    assert state_of(harness, "poison") is JobState.READY, "and waits for the next one"


@rule("F4", "F7")
def test_prevent_with_it_the_job_is_set_aside_and_others_go_on(harness: Harness) -> None:
    assert deaths(harness) == 5
    assert state_of(harness, "poison") is JobState.DEAD
    enqueue_many(harness, "one", "two")
    for lease in claim(harness, 10):
        acked(harness, lease)
    claim_nothing(harness)


def die_of_it(scene: Scene, handle: JobHandle[str], names: Sequence[str], environment: Mapping[str, str]) -> None:
    """One worker process after the other takes the job, which may have two expirations, and is killed by it."""
    for name in names:
        worker = scene.worker(name, "--queue", "hit", environment=environment)
        scene.await_began(handle, worker)
        wait_until(lambda: handle.record().executions[-1].started_at, "the start to be on record")
        scene.open_gate(f"dies-{name}")
        assert worker.wait() == 3


def test_reproduce_with_processes_without_the_count_one_more_dies_of_it(scene: Scene) -> None:
    handle = jobs.dies.enqueue("exit", times=99)
    die_of_it(scene, handle, ("first", "second", "third"), environment_without(GUARD))


@rule("F4")
def test_prevent_with_processes_that_really_die(scene: Scene) -> None:
    handle = jobs.dies.enqueue("exit", times=99)
    die_of_it(scene, handle, ("first", "second"), {})
    third = scene.worker("third")
    job = scene.await_state(handle, JobState.DEAD)
    scene.still_works()
    assert [it.worker for it in job.executions if it.started_at] == ["first", "second"]
    assert job.expirations == 2
    scene.check_not_applied(handle)
    assert third.end() == 0


@rule("F4", "F7", "O2")
def test_recover_it_stays_set_aside_until_somebody_has_repaired_the_handler(failing: FailingMachine) -> None:
    assert deaths(failing) == 5
    failing.lose_power()
    assert state_of(failing, "poison") is JobState.DEAD
    claim_nothing(failing)
    redrive(failing, "poison")
    failing.lose_power()
    acked(failing, only(claim(failing)))
    job = job_of(failing, "poison")
    assert (job.state, job.attempt, job.expirations) == (JobState.SUCCEEDED, 6, 0)
