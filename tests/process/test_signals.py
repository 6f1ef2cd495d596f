"""SIGTERM to a busy worker: what can end does, the rest is given back; the second one does not wait."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from leasemill import JobState, JobType
from leasemill.kernel.model import AbortReason
from leasemill.worker.exits import EXIT_OVERRUN
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
    for handle in (endless, deaf):
        job = scene.check_not_applied(handle)
        assert (job.state, job.retries) == (JobState.READY, 0)
        assert [it.reason for it in job.executions] == [AbortReason.RELEASED]
    assert (waiting.status(), waiting.record().attempt) == (JobState.READY, 0), "nothing more was claimed"
    scene.await_logged(worker, "worker stopped")

    second = scene.worker("second", app="patient")
    scene.check_applied_once(deaf, by=second)


@pytest.mark.parametrize("kind", [jobs.calls_a_thread, jobs.is_deaf], ids=lambda kind: kind.kind)
def test_a_handler_that_cannot_be_stopped_is_given_back_and_does_not_keep_the_process(
    scene: Scene, kind: JobType[[], Any]
) -> None:
    handle = kind.enqueue()
    worker = scene.worker("only", "--shutdown-timeout", "2", app="patient")
    scene.await_began(handle, worker)
    assert worker.end(limit_s=60) == 0
    assert scene.check_not_applied(handle).state is JobState.READY
    scene.await_logged(worker, "worker stopped")


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
    for handle in (async_job, thread_job):
        job = scene.check_not_applied(handle)
        assert (job.state, job.retries) == (JobState.READY, 0)
    second = scene.worker("second", app="patient")
    scene.check_applied_once(thread_job, by=second)
