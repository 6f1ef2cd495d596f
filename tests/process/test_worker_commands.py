"""Orders to workers in processes of their own, given on the command line."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from leasemill import JobState
from leasemill.cli import main
from leasemill.kernel.model import Order
from leasemill.store.worker_records import records
from leasemill.testing.rules import rule
from tests.lab.processes import WorkerProcess, wait_until
from tests.process import jobs
from tests.process.support import Scene
from tests.process.test_supervisor import await_healthy, pids


def asked(scene: Scene, order: str, worker: str, *options: str) -> list[dict[str, Any]]:
    """What `leasemill workers ORDER WORKER` prints."""
    call = ["workers", order, worker, "--url", scene.url, "--reason", "a leak", "--by", "ada", "--json", *options]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def await_record(scene: Scene, worker: WorkerProcess) -> None:
    wait_until(lambda: any(one.worker == worker.id for one, _ in records(scene.store.presence)), "a first heartbeat")


def quiet_and_resumed(scene: Scene) -> None:
    """What runs ends, nothing else begins until the worker is resumed, and nothing is lost."""
    worker = scene.worker("first", "--concurrency", "2", app="patient")
    running = [jobs.waits_with_the_default_lease.enqueue("held") for _ in range(2)]
    for handle in running:
        scene.await_began(handle, worker)
    await_record(scene, worker)
    waiting = [jobs.waits_with_the_default_lease.enqueue("open") for _ in range(20)]
    scene.open_gate("open")
    (said,) = asked(scene, "quiet", "fir")
    assert (said["worker"], said["order"], said["by"]) == ("first", "quiet", "ada")
    wait_until(lambda: any(one.is_quiet for one, _ in records(scene.store.presence)), "its record to say so")
    scene.open_gate("held")
    for handle in running:
        scene.check_applied_once(handle, by=worker)
    asked(scene, "quiet", "first", "--wait")  # again: nothing changes, and nothing runs any more
    assert {handle.status() for handle in waiting} == {JobState.READY}
    assert {handle.record().attempt for handle in waiting} == {0}
    worker.check_running()
    asked(scene, "resume", "first", "--wait")
    for handle in waiting:
        scene.check_applied_once(handle, by=worker)
    assert [act.verb for act in scene.store.actions()] == ["resume_worker", "quiet_worker"]


def stopped(scene: Scene) -> None:
    """It finishes what runs, gives back nothing that it has done, and ends with exit code 0."""
    worker = scene.worker("first", "--concurrency", "1", app="patient")
    running = jobs.waits_with_the_default_lease.enqueue("held")
    scene.await_began(running, worker)
    await_record(scene, worker)
    waiting = jobs.waits_with_the_default_lease.enqueue("open")
    asked(scene, "stop", "first")
    scene.await_logged(worker, "ordered to stop by ada: a leak")
    scene.await_logged(worker, "stopping: waiting for running jobs")
    scene.open_gate("held")
    scene.open_gate("open")
    assert worker.wait(60) == 0
    scene.check_applied_once(running, by=worker)
    assert (waiting.status(), waiting.record().attempt) == (JobState.READY, 0)
    assert records(scene.store.presence) == []
    second = scene.worker("first", app="patient")
    scene.check_applied_once(waiting)
    second.check_running()


@rule("O12", "O13")
def test_a_quiet_worker_ends_what_runs_and_claims_again_when_it_is_resumed(scene: Scene) -> None:
    quiet_and_resumed(scene)


@rule("O12", "O13")
def test_a_worker_that_is_ordered_to_stop_ends_with_exit_code_0_and_nothing_is_lost(scene: Scene) -> None:
    stopped(scene)


@rule("O13")
def test_a_process_that_is_ordered_to_stop_is_not_started_again_and_the_others_work_on(scene: Scene) -> None:
    supervisor = scene.worker("mill", "--processes", "2", app="patient")
    await_healthy(scene, supervisor)
    asked(scene, "stop", "mill.2", "--wait")
    wait_until(lambda: set(pids(supervisor)) == {"mill.1"}, "one process to be left")
    handle = jobs.waits_with_the_default_lease.enqueue("open")
    scene.open_gate("open")
    scene.check_applied_once(handle, by="mill.1")
    said = asked(scene, "stop", "mill", "--wait")
    assert [one["worker"] for one in said] == ["mill.1"]
    assert supervisor.wait(60) == 0


@rule("O13")
def test_an_order_to_a_supervisor_is_for_all_its_processes(scene: Scene) -> None:
    supervisor = scene.worker("mill", "--processes", "2", app="patient")
    await_healthy(scene, supervisor)
    before = pids(supervisor)
    said = asked(scene, "quiet", "mill", "--wait")
    assert [one["worker"] for one in said] == ["mill.1", "mill.2"]
    handle = jobs.waits_with_the_default_lease.enqueue("open")
    scene.open_gate("open")
    asked(scene, "resume", "mill", "--wait")
    scene.check_applied_once(handle)
    asked(scene, Order.STOP, "mill", "--wait")
    assert supervisor.wait(60) == 0
    assert pids_seen(scene) == set(before)


def pids_seen(scene: Scene) -> set[str]:
    """Who was stopped, as the list of actions has it."""
    return {act.target for act in scene.store.actions() if act.verb == "stop_worker"}
