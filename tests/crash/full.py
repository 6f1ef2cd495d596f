"""A real file system that is full: refused with a sentence, leases finish in the reserve, and with room it goes on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.wal.options import FileOptions
from leasemill.store.wal.store import FileStore

SEGMENT_BYTES = 256 * 1024
OPTIONS = FileOptions(segment_bytes=SEGMENT_BYTES, snapshot_bytes=2**40)


class NotPermitted(Exception):
    """This machine lets nobody mount a file system here."""


@contextmanager
def small_file_system(where: Path, size_bytes: int) -> Iterator[Path]:
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(where)]
    try:
        done = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotPermitted("there is no mount here") from error
    if done.returncode != 0:
        raise NotPermitted(done.stderr.strip())
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def fill_a_real_one(work: Path) -> str:
    """Fill a small file system, see what is refused and what is not, make room, go on."""
    with small_file_system(work / "small", 5 * SEGMENT_BYTES) as where:
        folder = where / "jobs"
        with FileStore(folder, options=OPTIONS) as store:
            leases, enqueued = _enqueue_until_refused(store)
            with FileStore(folder, options=OPTIONS) as other:
                _refused(other, "another process")
            acked = store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
            _require(all(isinstance(one, c.Acked) for one in acked), "a lease could not finish in the reserve")
            _require(store.totals().counts[JobState.READY] == enqueued - len(leases), "something is half there")
            (where / "ballast").unlink()
            time.sleep(1.1)
            _require(store.enqueue([_job("room")]) == [c.Enqueued("room")], "with room it did not go on")
        with FileStore(folder, options=OPTIONS) as store:
            counts = store.totals().counts
            _require(counts[JobState.SUCCEEDED] == len(leases), "an ack was lost")
            _require(counts[JobState.READY] == enqueued - len(leases) + 1, "an enqueue was lost")
    return f"{enqueued} jobs, {len(leases)} leases finished in the reserve"


def _enqueue_until_refused(store: FileStore) -> tuple[list[c.Lease], int]:
    """Take all the room but for what is in the file system already, then enqueue until it is refused."""
    store.enqueue([_job(f"first-{number}") for number in range(100)])
    leases = store.claim("worker", ["q"], 50)
    _take_all_room(Path(store._path).parent / "ballast")
    enqueued = 100
    for batch in range(1_000):
        try:
            store.enqueue([_job(f"more-{batch}-{number}") for number in range(10)])
        except Unavailable as error:
            _require(" MB or more" in str(error), f"the refusal does not name the remedy: {error}")
            return leases, enqueued
        enqueued += 10
    raise AssertionError("enqueue was never refused")


def _refused(store: FileStore, who: str) -> None:
    try:
        store.enqueue([_job("not this one")])
    except Unavailable:
        return
    raise AssertionError(f"{who} was not refused")


def _take_all_room(ballast: Path) -> None:
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        return
    finally:
        os.close(fd)


def _job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k", b'"%s"' % (b"x" * 100))


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise AssertionError(what)
