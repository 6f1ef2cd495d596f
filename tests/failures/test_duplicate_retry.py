"""FM_001, the duplicate retry, with real processes: reproduced, prevented, recovered from.

Worker A leases a job and starts; its lease runs out; worker B leases the same job and runs it; A goes on. Without the
commit boundary both apply the effect. With it one execution commits, and the other learns that it is too late.
"""

from __future__ import annotations

from leasemill import JobHandle
from leasemill.kernel.model import AbortReason, ExecutionStatus, LossReason, Verb
from leasemill.testing.rules import rule
from tests.lab.processes import WorkerProcess, wait_until
from tests.process import jobs
from tests.process.support import Scene


def run_twice(scene: Scene, handle: JobHandle[None] | JobHandle[str], gate: str) -> tuple[WorkerProcess, WorkerProcess]:
    """A is stopped in the middle until B has run the job to its end, then it goes on and ends as well."""
    a = scene.worker("a", "--queue", "hit")
    scene.await_began(handle, a)
    a.stop(lambda: scene.trail.unfinished("a"))
    b = scene.worker("b")
    scene.await_state(handle)
    scene.open_gate(gate)
    a.resume()
    wait_until(lambda: not scene.trail.unfinished("a"), "the stopped handler to end")
    return a, b


def test_reproduce_without_the_boundary_two_workers_apply_the_effect(scene: Scene) -> None:
    handle = jobs.applies_directly.enqueue()
    run_twice(scene, handle, "first")
    applied = scene.trail.marks("committed", job=handle.id)
    assert [mark.worker for mark in applied] == ["b", "a"], "the failure this is about"
    job = handle.record()
    assert [(it.worker, it.status) for it in job.executions] == [
        ("a", ExecutionStatus.ABORTED),
        ("b", ExecutionStatus.DONE),
    ]


@rule("X4", "L2", "L5")
def test_prevent_with_the_boundary_one_execution_commits_and_the_other_is_refused(scene: Scene) -> None:
    handle = jobs.waits_briefly.enqueue("first")
    a, b = run_twice(scene, handle, "first")
    wait_until(lambda: handle.record().refusals, "what the stopped worker reported to be refused")
    job = scene.check_applied_once(handle, by=b)
    assert len(scene.trail.marks("began", job=handle.id)) == 2, "two runs, one effect"
    assert [mark.worker for mark in scene.trail.marks("refused", job=handle.id)] == ["a"]
    assert [(it.worker, it.status, it.reason) for it in job.executions] == [
        ("a", ExecutionStatus.ABORTED, AbortReason.EXPIRED),
        ("b", ExecutionStatus.DONE, None),
    ]
    refusal = job.refusals[0]  # its extension, commit or release: whichever came first when it went on
    assert (refusal.worker, refusal.attempt, refusal.current_attempt, refusal.reason) == (
        "a",
        1,
        2,
        LossReason.SUPERSEDED,
    )
    scene.await_logged(a, "lease lost", job=handle.id, attempt=1)
    assert (a.end(), b.end()) == (0, 0)


@rule("X5")
def test_recover_a_crash_after_the_commit_is_finished_without_a_second_run(scene: Scene) -> None:
    handle = jobs.commits_and_waits.enqueue()
    a = scene.worker("a", "--queue", "hit")
    wait_until(lambda: scene.trail.marks("committed", job=handle.id), "the commit")
    a.kill()
    assert handle.record().executions[-1].status is ExecutionStatus.COMMITTED
    b = scene.worker("b")
    job = scene.check_applied_once(handle, by=a)
    (run,) = job.executions
    assert (run.worker, run.status) == ("a", ExecutionStatus.DONE)
    assert run.ended_by in {Verb.DEATH, Verb.EXPIRE}, "its lease is short: it may be over before b has started"
    scene.still_works()
    assert len(scene.trail.marks("began", job=handle.id)) == 1
    assert b.end() == 0
