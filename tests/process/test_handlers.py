"""Handlers that never return: a worker that has no slot left for others ends."""

from __future__ import annotations

from leasemill import JobState
from leasemill.cli.lazy_group import EXIT_STUCK
from tests.process import jobs
from tests.process.support import Scene


def test_a_worker_whose_slots_are_all_stuck_ends_with_an_exit_code_of_its_own(scene: Scene) -> None:
    handle = jobs.never_returns_in_a_thread.enqueue()
    worker = scene.worker("only", "--concurrency", "1")
    scene.await_state(handle, JobState.FAILED)
    waiting = jobs.sleeps.enqueue(0)
    assert worker.wait(limit_s=60) == EXIT_STUCK
    scene.await_logged(worker, "worker stops: all slots are stuck (1 of 1)")
    assert waiting.status() is JobState.READY, "it waits for the next worker"
