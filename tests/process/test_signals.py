"""SIGTERM to a busy worker: what can end does, the rest is released when it has ended; the second one does not wait."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from leasemill import JobState, JobType
from leasemill.kernel.model import SECOND, AbortReason
from leasemill.worker.process_ends import EXIT_OVERRUN
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene


def test_a_busy_worker_finishes_what_it_can_and_gives_the_rest_back(scene: Scene) -> None:
    quick, endless = jobs.sleeps_patiently.enqueue(0.6), jobs.sleeps_patiently.enqueue(3600)
    deaf = jobs.waits_with_the_default_lease.enqueue("never")
    worker = scene.worker("first", "--concurrency", "3", "--shutdown-timeout", "5", app="patient")
    for handle in (quick, endless, deaf):
        scene.await_began(handle, worker)
    waiting = jobs.waits_with_the_default_lease.enqueue("never")

    assert worker.end(limit_s=60) == 0

    scene.check_applied_once(quick, by=worker)
    job = scene.check_not_applied(endless)
    assert (job.state, job.retries) == (JobState.READY, 0)
    assert [it.reason for it in job.executions] == [AbortReason.RELEASED]
    assert scene.check_not_applied(deaf).state is JobState.LEASED, "its thread had not returned"
    assert (waiting.status(), waiting.record().attempt) == (JobState.READY, 0), "nothing more was claimed"
    scene.await_logged(worker, "worker stopped")

    second = scene.worker("second", app="patient")
    job = scene.check_applied_once(deaf, by=second)
    assert job.executions[0].reason is AbortReason.RELEASED, "by the second: the first was stopping, and is gone"


@pytest.mark.parametrize(
    ("kind", "state"),
    [(jobs.calls_a_thread, JobState.READY), (jobs.is_deaf, JobState.LEASED)],
    ids=["calls_a_thread", "is_deaf"],
)
def test_a_handler_that_cannot_be_stopped_does_not_keep_the_process(
    scene: Scene, kind: JobType[[], Any], state: JobState
) -> None:
    handle = kind.enqueue()
    worker = scene.worker("only", "--shutdown-timeout", "2", app="patient")
    scene.await_began(handle, worker)
    assert worker.end(limit_s=60) == 0
    assert scene.check_not_applied(handle).state is state
    scene.await_logged(worker, "worker stopped")


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_job_of_many_leases_survives_a_deployment_that_waits_for_it(scene: Scene, options: list[str]) -> None:
    long, later = jobs.waits.enqueue("long"), jobs.waits.enqueue("later")
    worker = scene.worker("old", "--concurrency", "1", "--shutdown-timeout", "infinity", "--queue", "hit", *options)
    waiting = [jobs.waits.enqueue("later") for _ in range(2)]
    wait_until(lambda: scene.trail.marks("began", job=long.id), "the long one to begin")
    worker.signal(signal.SIGTERM)
    scene.await_logged(worker, "stopping: waiting for running jobs")
    signalled_at = long.record().executions[0].expires_at

    def has_outlasted_its_lease() -> bool:
        worker.check_running()
        return long.record().executions[0].expires_at > signalled_at + 2 * jobs.LEASE_S * SECOND

    wait_until(has_outlasted_its_lease, "two more leases", 60)
    assert scene.check_not_applied(long).attempt == 1
    scene.open_gate("long")
    scene.open_gate("later")
    assert worker.wait(limit_s=60) == 0
    assert scene.check_applied_once(long).attempt == 1
    claimed = sum(handle.record().attempt for handle in (later, *waiting))
    assert claimed <= len(options) // 2, "one by the other process, and nothing more after the signal"


@pytest.mark.parametrize("kind", [jobs.starts_a_thread, jobs.starts_a_child], ids=lambda kind: kind.kind)
def test_threads_and_child_processes_that_go_on_do_not_keep_the_process(scene: Scene, kind: JobType[[], Any]) -> None:
    handle = kind.enqueue()
    worker = scene.worker("only", "--shutdown-timeout", "2", app="patient")
    try:
        scene.await_state(handle)
        assert worker.end(limit_s=60) == 0
        scene.await_logged(worker, "the process is kept alive: ending the process with exit code 0")
    finally:
        scene.open_gate("child")


def test_a_worker_whose_event_loop_is_blocked_ends_itself_with_an_exit_code_of_its_own(scene: Scene) -> None:
    handle = jobs.blocks_the_loop_for_ever.enqueue()
    worker = scene.worker("only", "--shutdown-timeout", "2", app="patient")
    scene.await_began(handle, worker)
    assert worker.end(limit_s=60) == EXIT_OVERRUN
    scene.await_logged(worker, "the worker has not stopped: ending the process with exit code 6")
    assert scene.check_not_applied(handle).state is JobState.LEASED, "another worker has it when its lease has expired"


def test_a_second_signal_ends_the_worker_at_once(scene: Scene) -> None:
    async_job = jobs.sleeps_patiently.enqueue(3600)
    thread_job = jobs.waits_with_the_default_lease.enqueue("never")
    worker = scene.worker("first", "--concurrency", "2", "--shutdown-timeout", "30", app="patient")
    for handle in (async_job, thread_job):
        scene.await_began(handle, worker)
    worker.signal(signal.SIGTERM)
    scene.await_logged(worker, "stopping: waiting for running jobs")
    worker.signal(signal.SIGTERM)
    assert worker.wait(limit_s=20) == 0, "it did not use the time it had"
    scene.await_logged(worker, "stopping now")
    job = scene.check_not_applied(async_job)
    assert (job.state, job.retries) == (JobState.READY, 0)
    assert scene.check_not_applied(thread_job).state is JobState.LEASED
    second = scene.worker("second", app="patient")
    scene.check_applied_once(thread_job, by=second)
