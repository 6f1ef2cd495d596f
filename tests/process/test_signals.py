"""SIGTERM to a busy worker: what can end does, the rest is given back; the second one does not wait."""

from __future__ import annotations

import signal
import time

from leasemill import JobState
from leasemill.kernel.model import AbortReason
from tests.process import jobs
from tests.process.support import Scene


def test_a_busy_worker_finishes_what_it_can_and_gives_the_rest_back(scene: Scene) -> None:
    quick, endless = jobs.sleeps.enqueue(0.6), jobs.sleeps.enqueue(3600)
    deaf = jobs.waits.enqueue("never")
    worker = scene.worker("first", "--concurrency", "3")
    for handle in (quick, endless, deaf):
        scene.await_began(handle, worker)
    waiting = jobs.bystander.enqueue()

    asked_at = time.monotonic()
    assert worker.end() == 0
    took_s = time.monotonic() - asked_at
    assert jobs.LEASE_S - 0.1 < took_s < jobs.LEASE_S + 4, "the time it has, then a little to clean up"

    scene.check_applied_once(quick, by=worker)
    for handle in (endless, deaf):
        job = scene.check_not_applied(handle)
        assert (job.state, job.retries) == (JobState.READY, 0)
        assert [it.reason for it in job.executions] == [AbortReason.RELEASED]
    assert (waiting.status(), waiting.record().attempt) == (JobState.READY, 0), "nothing more was claimed"
    scene.await_logged(worker, "worker stopped")

    second = scene.worker("second")
    scene.check_applied_once(deaf, by=second)
    scene.check_applied_once(waiting, by=second)


def test_a_second_signal_ends_the_worker_at_once(scene: Scene) -> None:
    async_job, thread_job = jobs.sleeps.enqueue(3600), jobs.waits.enqueue("never")
    worker = scene.worker("first", "--concurrency", "2")
    for handle in (async_job, thread_job):
        scene.await_began(handle, worker)
    asked_at = time.monotonic()
    worker.signal(signal.SIGTERM)
    scene.await_logged(worker, "stopping: running jobs may end first")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - asked_at < jobs.LEASE_S, "it did not use the time it had"
    scene.await_logged(worker, "stopping at once")
    for handle in (async_job, thread_job):
        job = scene.check_not_applied(handle)
        assert (job.state, job.retries) == (JobState.READY, 0)
    second = scene.worker("second")
    scene.check_applied_once(thread_job, by=second)
