"""The process tests that take their time: run by `make chaos`, not by `make test`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from leasemill.worker.timing import DEFAULT_REAPER_S
from tests.lab.zombie import Variant, play_all, staged
from tests.process import jobs
from tests.process.support import Scene
from tests.process.test_demo import run_demo

RUNS = 20
BROKEN = Path(__file__).parent / "broken"
DEFAULT_LEASE_S = 30.0


@pytest.mark.timeout(300)
def test_no_zombie_changes_anything_in_many_runs() -> None:
    with staged(None) as stage:
        runs = play_all(stage, Variant, runs=RUNS, parallel=4)
    assert [run for run in runs if not run.is_right] == []
    assert [run.effects for run in runs] == [1] * (RUNS * len(Variant))


@pytest.mark.timeout(120)
def test_with_the_default_lease_a_killed_workers_jobs_run_again_after_lease_and_reaper(scene: Scene) -> None:
    handles = [jobs.waits_with_the_default_lease.enqueue("never") for _ in range(3)]
    first = scene.worker("first", app="patient")
    for handle in handles:
        scene.await_began(handle, first)
    second = scene.worker("second", app="patient")
    scene.await_logged(second, "worker started")
    killed_at = time.monotonic()
    first.kill()
    for handle in handles:
        scene.await_began(handle, second, limit_s=DEFAULT_LEASE_S + DEFAULT_REAPER_S)
        scene.check_applied_once(handle, by=second)
        began = scene.trail.marks("began", worker="second", job=handle.id)
        assert began[0].at - killed_at < DEFAULT_LEASE_S + DEFAULT_REAPER_S
    scene.await_logged(second, "worker first", dead_worker="first")


@pytest.mark.timeout(300)
def test_the_demo_holds_every_time() -> None:
    for _ in range(5):
        code, output, errors = run_demo()
        assert code == 0, output + errors


@pytest.mark.timeout(120)
def test_the_demo_notices_a_missing_fence() -> None:
    code, output, _ = run_demo("--jobs", "200", PYTHONPATH=str(BROKEN))
    assert code == 1
    assert "the audit does NOT hold" in output
    assert " 0 doubled" not in output
