"""The store goes away under running workers: they wait for it, and nothing is applied that was not recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from leasemill import JobHandle
from leasemill.errors import Unavailable
from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene

DISK_BYTES = 4 * 1024 * 1024
SEGMENT_BYTES = 256 * 1024


def test_a_worker_outlives_the_removal_of_its_folder(scene: Scene) -> None:
    handle = jobs.waits.enqueue("go on")
    worker = scene.worker("only")
    scene.await_began(handle, worker)
    scene.still_works()

    (scene.folder / "jobs").rename(scene.folder / "removed")  # at once: the worker may be writing to it
    shutil.rmtree(scene.folder / "removed")
    scene.open_gate("go on")
    wait_until(lambda: not scene.trail.unfinished("only"), "the handler to learn that it lost its job")
    assert scene.trail.marks("committed", job=handle.id) == [], "a commit that nobody keeps is none"
    scene.await_logged(worker, "unavailable")
    scene.await_logged(worker, "lease lost", job=handle.id)
    before = len(scene.trail.marks("began", worker="only"))

    with ExitStack() as cleaning:
        again = Scene(scene.url, scene.folder, cleaning)
        new = again.worker("new")
        again.still_works(limit_s=30)
        worker.check_running()
        assert len(again.trail.marks("began", worker="only")) == before, "it claims nothing from another folder (W18)"
        assert worker.end() == 0
        assert new.end() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, to be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "leasemill-test", str(place)]
    try:
        made = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command; full disks are also simulated in tests/crash")
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here ({made.stderr.strip()}); see also tests/crash")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_stops_new_jobs_and_loses_none(small_disk: Path, tmp_path: Path) -> None:
    with ExitStack() as cleaning:
        url = f"file:{small_disk / 'jobs'}?segment_bytes={SEGMENT_BYTES}&snapshot_bytes={2 * SEGMENT_BYTES}"
        scene = Scene(url, tmp_path, cleaning)
        held = jobs.waits.enqueue("go on")
        holder = scene.worker("holder", "--queue", "hit")
        scene.await_began(held, holder)

        fill(small_disk / "ballast")
        accepted: list[JobHandle[str]] = []
        with pytest.raises(Unavailable, match="no space left"):
            enqueue_for_ever(accepted)
        scene.open_gate("go on")
        scene.check_applied_once(held, by=holder)  # there is room for what ends jobs when there is none for more

        worker = scene.worker("worker", "--queue", "bystanders", "--queue", "receipts")
        scene.await_logged(worker, "unavailable")
        holder.check_running()
        worker.check_running()

        (small_disk / "ballast").unlink()
        for handle in accepted:
            scene.check_applied_once(handle, by=worker)
        wait_until(takes_a_job, "new jobs to be taken again")
        scene.still_works()
        assert (holder.end(), worker.end()) == (0, 0)


def takes_a_job() -> bool:
    """Whether there is room is looked at again after a second."""
    try:
        jobs.bystander.enqueue()
    except Unavailable:
        return False
    return True


def enqueue_for_ever(accepted: list[JobHandle[str]]) -> None:
    while True:
        accepted.append(jobs.bystander.enqueue("x" * 500))


def fill(path: Path) -> None:
    """Take every byte that is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65_536, 4_096, 512, 1):
            with suppress(OSError):
                while os.write(fd, bytes(size)):
                    pass
    finally:
        os.close(fd)
