"""Workers that die in the middle of a handler: others run the job again at once, and it counts once."""

from __future__ import annotations

import time
from typing import Literal

import pytest

from leasemill.kernel.model import AbortReason
from tests.process import jobs
from tests.process.support import Scene


def test_a_killed_workers_jobs_run_again_at_once(scene: Scene) -> None:
    handles = [jobs.waits.enqueue("never") for _ in range(3)]
    first = scene.worker("first", "--queue", "hit")
    for handle in handles:
        scene.await_began(handle, first)
    second = scene.worker("second")
    scene.still_works()

    killed_at = time.monotonic()
    first.kill()
    scene.still_works()
    for handle in handles:
        scene.await_began(handle, second)
        job = scene.check_applied_once(handle, by=second)
        assert [(it.worker, it.reason) for it in job.executions] == [("first", AbortReason.DIED), ("second", None)]
        assert job.retries == 0, "a death is not a failure"
        began = scene.trail.marks("began", worker="second", job=handle.id)
        assert began[0].at - killed_at < jobs.LEASE_S + 20
        scene.await_logged(second, "after the lease of worker first ended with its death", job=handle.id)


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("segfault", -11)])
def test_a_handler_that_takes_its_worker_with_it_runs_again_elsewhere(
    scene: Scene, how: Literal["exit", "segfault"], code: int
) -> None:
    handle = jobs.dies.enqueue(how, times=1)
    first = scene.worker("first", "--queue", "hit")
    scene.await_began(handle, first)
    second = scene.worker("second")
    scene.still_works()
    scene.open_gate("dies-first")
    assert first.wait() == code
    scene.still_works()
    job = scene.check_applied_once(handle, by=second)
    assert (job.attempt, job.expirations) == (2, 1)
