"""Handlers that block the event loop or never return: they cost what they must, and nothing beside them."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill import JobState, JobType
from leasemill.cli.lazy import EXIT_STUCK
from leasemill.kernel.model import AbortReason
from tests.process import jobs
from tests.process.support import Scene


def test_a_handler_that_blocks_the_loop_for_two_leases_keeps_its_job(scene: Scene) -> None:
    handle = jobs.blocks_the_loop.enqueue()
    first = scene.worker("first", "--queue", "hit")
    scene.await_began(handle, first)
    second = scene.worker("second")
    scene.still_works()
    job = scene.check_applied_once(handle, by=first)
    assert job.attempt == 1, "its heartbeat did not need the loop"
    assert job.refusals == ()
    assert (first.end(), second.end()) == (0, 0)


def test_a_worker_whose_slots_are_all_stuck_ends_with_an_exit_code_of_its_own(scene: Scene) -> None:
    handle = jobs.never_returns_in_a_thread.enqueue()
    worker = scene.worker("only", "--concurrency", "1")
    scene.await_state(handle, JobState.FAILED)
    waiting = jobs.sleeps.enqueue(0)
    assert worker.wait(limit_s=60) == EXIT_STUCK
    scene.await_logged(worker, "worker stops: all slots are stuck (1 of 1)")
    assert waiting.status() is JobState.READY, "it waits for the next worker"


@pytest.mark.parametrize("kind", [jobs.never_returns, jobs.never_returns_in_a_thread], ids=lambda kind: kind.kind)
def test_a_handler_that_never_returns_fails_at_its_timeout(scene: Scene, kind: JobType[[], Any]) -> None:
    handle = kind.enqueue()
    worker = scene.worker("only", "--concurrency", "2")
    scene.await_began(handle, worker)
    scene.still_works()
    job = scene.await_state(handle, JobState.FAILED)
    assert [(it.worker, it.reason) for it in job.executions] == [("only", AbortReason.FAILED)]
    assert job.executions[0].error is not None
    assert "ran longer than its timeout of 0.7 s" in job.executions[0].error
    scene.check_not_applied(handle)
    scene.await_logged(worker, "timed out", job=handle.id)
    scene.still_works()
    assert worker.end() == 0, "a thread that hangs does not keep the process"
