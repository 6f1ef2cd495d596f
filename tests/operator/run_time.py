"""What an operator changes is seen by a worker that runs, within seconds, without a restart: real processes."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner

from leasemill import JobHandle
from leasemill.cli import main
from leasemill.kernel.model import SECOND, JobState
from leasemill.testing.rules import rule
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

SOON_S = 5.0


def operate(scene: Scene, *arguments: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--reason", "a test", "--url", scene.url])
    assert result.exit_code == 0, result.output


def run(scene: Scene, handle: JobHandle[Any]) -> Any:
    scene.await_state(handle, limit_s=SOON_S)
    return handle.record().executions[-1].terms


class RunTimeSuite:
    """A store's tests give the `scene`."""

    @rule("O4", "I5")
    def test_a_queues_policy_holds_for_the_next_claim_of_a_running_worker(self, scene: Scene) -> None:
        scene.worker("a")
        before = run(scene, jobs.bystander.enqueue())
        assert (before.lease_ttl_us, before.max_retries) == (jobs.LEASE_S * SECOND, 3)
        operate(scene, "queues", "set", "bystanders", "--lease", "7", "--max-retries", "9")
        after = run(scene, jobs.bystander.enqueue())
        assert (after.lease_ttl_us, after.max_retries) == (7 * SECOND, 9)
        operate(scene, "queues", "set", "bystanders", "--clear")
        assert run(scene, jobs.bystander.enqueue()) == before

    @rule("O4")
    def test_a_shorter_lease_makes_the_heartbeat_of_a_running_worker_quicker(self, scene: Scene) -> None:
        """The job runs for several of the new leases: its worker must not go on at the old pace."""
        a = scene.worker("a", "--queue", "hit")
        operate(scene, "queues", "set", "hit", "--create", "--lease", "1", "--timeout", "30")
        handle = jobs.sleeps.enqueue(3.5)
        scene.await_began(handle, a)
        assert handle.record().executions[-1].terms.lease_ttl_us == SECOND
        job = scene.await_state(handle)
        assert (job.attempt, job.refusals) == (1, ())

    @rule("O4")
    def test_a_policy_that_does_not_fit_a_running_worker_is_logged_as_a_warning(self, scene: Scene) -> None:
        a = scene.worker("a", "--queue", "bystanders", "--heartbeat", "0.3")
        run(scene, jobs.bystander.enqueue())
        operate(scene, "queues", "set", "bystanders", "--lease", "0.8")
        scene.await_logged(a, "a queue's policy does not fit this worker", limit_s=15)

    @rule("O3")
    def test_a_paused_queue_gives_a_running_worker_nothing_until_it_is_resumed(self, scene: Scene) -> None:
        a = scene.worker("a")
        run(scene, jobs.bystander.enqueue())
        operate(scene, "queues", "pause", "bystanders")
        held = jobs.bystander.enqueue()
        other = jobs.waits.enqueue("open")
        scene.open_gate("open")
        scene.await_state(other, limit_s=SOON_S)
        assert held.status() is JobState.READY, "another queue goes on, this one does not"
        operate(scene, "queues", "resume", "bystanders")
        scene.await_state(held, limit_s=SOON_S)
        wait_until(lambda: scene.trail.marks("committed", worker=a.id, job=held.id), "the same worker to have run it")
