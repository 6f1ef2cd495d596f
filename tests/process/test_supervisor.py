"""Several processes of one worker: they are started again, stopped and replaced together, and none is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from leasemill import JobState
from leasemill.cli import main
from leasemill.demo.workers import holds_no_lock
from leasemill.kernel.model import AbortReason
from tests.lab.processes import WorkerProcess, wait_until
from tests.process import jobs
from tests.process.support import Scene


def children(supervisor: WorkerProcess) -> dict[str, psutil.Process]:
    """Its processes by worker id; those that have not said hello yet, too."""
    found = psutil.Process(supervisor.pid).children()
    return {name: one for one in found if (name := worker_id(one))}


@contextmanager
def hangup_by_default() -> Iterator[None]:
    """Tests that were started by `nohup` would pass on that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pids(supervisor: WorkerProcess) -> dict[str, int]:
    return {name: process.pid for name, process in children(supervisor).items()}


def worker_id(process: psutil.Process) -> str | None:
    try:
        options = process.cmdline()
    except psutil.NoSuchProcess:
        return None
    return next((text.partition("=")[2] for text in options if text.startswith("--worker-id=")), None)


def health(scene: Scene, name: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, ["health", "--url", scene.url, "--worker", name, "--json"])
    return result.exit_code, json.loads(result.stdout)


def await_healthy(scene: Scene, supervisor: WorkerProcess) -> dict[str, Any]:
    def is_healthy() -> bool:
        supervisor.check_running()
        return health(scene, supervisor.id)[0] == 0

    wait_until(is_healthy, f"all processes of {supervisor.id} to be up", every_s=0.1)
    return health(scene, supervisor.id)[1]


def stop_safely(scene: Scene, process: psutil.Process) -> None:
    """Not while it holds the folder's lock, for which all others would wait."""

    def is_stopped() -> bool:
        process.suspend()
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it to stand still")
        if holds_no_lock(scene.url, ""):
            return True
        process.resume()
        return False

    wait_until(is_stopped, "it to hold no lock")


def messages(worker: WorkerProcess, text: str) -> list[dict[str, Any]]:
    return [line for line in worker.log_lines() if text in line["message"]]


def test_processes_are_one_worker_to_whoever_looks_and_are_stopped_at_once(scene: Scene) -> None:
    deaf = [jobs.waits_with_the_default_lease.enqueue("never") for _ in range(2)]
    mill = scene.worker("mill", "--processes", "2", "--concurrency", "1", "--shutdown-timeout", "1", app="patient")
    each = await_healthy(scene, mill)["processes"]
    assert {name: one["is_healthy"] for name, one in each.items()} == {"mill.1": True, "mill.2": True}
    assert health(scene, "mill.2")[0] == 0
    assert health(scene, "mill.3")[0] == 1
    for handle in deaf:
        wait_until(lambda one=handle: scene.trail.marks("began", job=one.id), "both to have a job")  # type: ignore[misc]
    assert {mark.worker for mark in scene.trail.marks("began")} == {"mill.1", "mill.2"}
    processes = list(children(mill).values())

    os.killpg(mill.pid, signal.SIGINT)  # as a terminal does, and a service manager with SIGTERM

    assert mill.wait() == 0
    assert not any(process.is_running() for process in processes)
    assert len(messages(mill, "worker started")) == 1
    assert "2 processes × 1 slot" in messages(mill, "worker started")[0]["message"]
    assert {line["worker"] for line in messages(mill, "waiting for running jobs")} == {"mill.1", "mill.2"}
    assert messages(mill, "stopping now") == [], "one signal to the group counts once"
    for handle in deaf:
        job = scene.check_not_applied(handle)
        assert job.state is JobState.LEASED, (
            "its handler did not end: the lease ends by time, or the next worker proves the death"
        )


def test_a_second_signal_hurries_every_process_and_one_that_stands_still_is_killed(scene: Scene) -> None:
    handle = jobs.sleeps_patiently.enqueue(3600)
    mill = scene.worker("mill", "--processes", "2", "--shutdown-timeout", "25", app="patient")
    await_healthy(scene, mill)
    wait_until(lambda: scene.trail.marks("began", job=handle.id), "the job to run")
    busy = scene.trail.marks("began", job=handle.id)[0].worker
    idle = {"mill.1": "mill.2", "mill.2": "mill.1"}[busy]
    still = children(mill)[idle]
    stop_safely(scene, still)
    mill.signal(signal.SIGTERM)
    wait_until(lambda: messages(mill, "stopping: waiting for running jobs"), "the busy one to stop")
    mill.signal(signal.SIGTERM)
    assert mill.wait(20) == 6, "it did not use the time it had, and says that one had to be killed"
    assert scene.check_not_applied(handle).state is JobState.READY
    assert not still.is_running()
    scene.await_logged(mill, f"worker {idle} ended: exit status 137 (SIGKILL), seen by its supervisor")


def test_processes_stop_gracefully_when_their_supervisor_was_killed(scene: Scene) -> None:
    handles = [jobs.sleeps_patiently.enqueue(3600) for _ in range(2)]
    options = ("--processes", "2", "--concurrency", "1", "--shutdown-timeout", "0.5")
    mill = scene.worker("mill", *options, app="patient")
    wait_until(lambda: len(scene.trail.marks("began")) == 2, "both to have a job")
    processes = children(mill)
    mill.kill()
    assert psutil.wait_procs(list(processes.values()), timeout=30)[1] == []
    for handle in handles:
        job = scene.check_not_applied(handle)
        assert (job.state, [it.reason for it in job.executions]) == (JobState.READY, [AbortReason.RELEASED])
    assert {line["worker"] for line in messages(mill, "the supervisor is gone")} == set(processes)


def test_sighup_replaces_one_process_after_the_other_unless_the_new_code_is_broken(
    scene: Scene, tmp_path: Path
) -> None:
    module = tmp_path / "shop.py"
    module.write_text("from tests.process.jobs import app\n")
    with hangup_by_default():
        mill = scene.worker("mill", "--processes", "2", target="shop:app")
    await_healthy(scene, mill)
    before = pids(mill)
    handles = [jobs.bystander.enqueue() for _ in range(60)]
    mill.signal(signal.SIGHUP)
    handles += [jobs.bystander.enqueue() for _ in range(60)]
    scene.await_logged(mill, "all processes were restarted")
    after = pids(mill)
    assert set(after) == set(before) == {"mill.1", "mill.2"}
    assert not set(after.values()) & set(before.values())
    order = [
        (line["message"].split()[0], line["worker"] if line["worker"] != "mill" else line["message"].split()[1])
        for line in mill.log_lines()
        if line["message"].startswith("stopping") or "started again" in line["message"]
    ]
    assert order == [("stopping:", "mill.1"), ("worker", "mill.1"), ("stopping:", "mill.2"), ("worker", "mill.2")]
    for handle in handles:
        assert scene.check_applied_once(handle).retries == 0

    module.write_text("from tests.process.jobs import app\nthis is no Python\n")
    mill.signal(signal.SIGHUP)
    scene.await_logged(mill, "restart abandoned: the new process of worker mill.1 did not become ready")
    assert pids(mill) == after, "the old ones work on"
    assert mill.end() == 0


def test_an_app_that_cannot_be_imported_is_reported_once(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("this is no Python\n")
    mill = scene.worker("mill", "--processes", "3", target="shop:app")
    assert mill.wait() == 1
    assert mill.log().count("Error: shop cannot be imported") == 1
    scene.await_logged(mill, "worker mill.1 cannot run: exit status 1")


@pytest.mark.parametrize("count", [1, 2])
def test_the_jobs_of_a_killed_process_run_again_at_once(scene: Scene, count: int) -> None:
    """With one process its successor records the death, with two a sibling does."""
    killed_process_is_recorded(scene, count)


def killed_process_is_recorded(scene: Scene, count: int) -> None:
    handle = jobs.waits_with_the_default_lease.enqueue("never")
    mill = scene.worker("mill", "--processes", str(count), app="patient")
    if count > 1:
        await_healthy(scene, mill)
    wait_until(lambda: scene.trail.marks("began", job=handle.id), "the job to run")
    hit = scene.trail.marks("began", job=handle.id)[0].worker
    victim = children(mill)[hit]
    victim.kill()
    job = scene.check_applied_once(handle)
    assert [(it.attempt, it.reason) for it in job.executions] == [(1, AbortReason.DIED), (2, None)]
    assert f"worker {hit} ended: " in (job.executions[0].error or "")
    assert job.retries == 0
    scene.await_logged(mill, f"worker {hit} ended: exit status 137 (SIGKILL), seen by its supervisor")


def test_a_process_is_replaced_after_its_jobs_and_all_of_them_drain(scene: Scene) -> None:
    handles = [jobs.bystander.enqueue() for _ in range(7)]
    mill = scene.worker("mill", "--max-jobs", "3", "--concurrency", "1", "--drain", "--queue", "bystanders")
    assert mill.wait() == 0
    for handle in handles:
        job = scene.check_applied_once(handle)
        assert {it.reason for it in job.executions} <= {AbortReason.RELEASED, None}  # claimed ahead, and given back
    assert [line["worker"] for line in messages(mill, "this process is replaced: it has run 3 jobs")] == ["mill.1"] * 2
    assert messages(mill, "ended:") == []


def test_a_process_that_grows_beyond_its_memory_is_replaced_between_jobs(scene: Scene) -> None:
    handles = [jobs.leaks.enqueue(300), *(jobs.bystander.enqueue() for _ in range(5))]
    mill = scene.worker("mill", "--max-memory", "250MB", "--concurrency", "1", "--drain", "--queue", "bystanders")
    assert mill.wait() == 0
    for handle in handles:
        job = scene.check_applied_once(handle)
        assert {it.reason for it in job.executions} <= {AbortReason.RELEASED, None}  # claimed ahead, and given back
    (line,) = messages(mill, "this process is replaced: it uses")
    assert (line["worker"], "more than 250 MB" in line["message"]) == ("mill.1", True)
    (leaked,) = handles[0].record().executions
    later = [run.leased_at for handle in handles[1:] for run in handle.record().executions if run.committed_at]
    assert leaked.finished_at is not None
    assert all(at > leaked.finished_at for at in later), "what is left runs in the process that came after"
    assert messages(mill, "ended:") == []


def test_a_change_of_the_code_restarts_the_process_and_a_syntax_error_waits_for_the_next(
    scene: Scene, tmp_path: Path
) -> None:
    module = tmp_path / "shop" / "tasks.py"
    (tmp_path / "shop" / ".venv").mkdir(parents=True)
    module.write_text("from tests.process.jobs import patient as app\n")
    handle = jobs.waits_with_the_default_lease.enqueue("gate")
    mill = scene.worker("mill", "--reload", target="shop.tasks:app")
    wait_until(lambda: scene.trail.marks("began", job=handle.id), "the job to run")

    (tmp_path / "shop" / ".venv" / "other.py").write_text("")
    for number in range(50):
        module.write_text(f"from tests.process.jobs import patient as app  # {number}\n")
    module.write_text("this is no Python\n")
    wait_until(lambda: mill.log().count("SyntaxError") == 2, "the error, as a traceback and in a sentence")
    assert len(messages(mill, "tasks.py changed: restarting")) == 1, "however many changes there were"
    job = scene.check_not_applied(handle)
    assert (job.state, job.retries) == (JobState.LEASED, 0), (
        "its handler did not end: the next process proves the death"
    )

    scene.open_gate("gate")
    module.write_text("from tests.process.jobs import patient as app\n")
    scene.check_applied_once(handle, by="mill")
    assert mill.end() == 0


def test_a_memory_store_is_refused_once(scene: Scene) -> None:
    mill = scene.worker("mill", "--processes", "2", "--url", "memory:")
    assert mill.wait() == 2
    assert mill.log().count("a memory: store lives inside one process") == 1
