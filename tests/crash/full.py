"""A real file system that is full to the last block: what adds jobs is refused with a sentence, running jobs report,
long results too, a worker starts, a snapshot is taken, commands report the disk, and with room it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore

SEGMENT_BYTES = 256 * 1024
OPTIONS = FileOptions(segment_bytes=SEGMENT_BYTES, snapshot_bytes=2**40)
ENDED = 1_000
RUNNING = 100
LONG_RESULTS = 24
LONG_RESULT = b'"%s"' % (b"r" * 10_000)
"""Together 240 kB: a little less than what is reserved for reports."""
START_LIMIT_S = 60
APP = """
import os
from leasemill import App, Limit
app = App(os.environ["LEASEMILL_URL"])
@app.job(limit=Limit(3, name="mailer"))
def mail(n: int) -> int:
    return n
"""


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
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill_a_real_one(work: Path) -> str:
    """Fill a small file system, see what is refused and what is not, make room, go on."""
    with small_file_system(work / "small", 16 * SEGMENT_BYTES) as where:
        folder = where / "jobs"
        with FileStore(folder, options=OPTIONS) as store:
            leases, waiting = _enqueue_until_refused(store)
            with FileStore(folder, options=OPTIONS) as other:
                _refused(other, "another process")
            _require_reported(folder)
            _start_a_worker(folder, work)
            last = _last_segment(folder)
            _ack_one_by_one(store, leases)
            _require(_last_segment(folder) > last, "no segment ended on the full disk")
            _require(store.totals().counts[JobState.READY] == waiting, "something is half there")
            _take_snapshot(store, folder)
            (where / "ballast").unlink()
            time.sleep(1.1)
            _require(store.enqueue([_job("room")]) == [c.Enqueued("room")], "with room it did not go on")
            _require(not _asked(folder, "stats")["disk"]["is_full"], "with room the disk is still reported as full")
        with FileStore(folder, options=OPTIONS) as store:
            counts = store.totals().counts
            _require(counts[JobState.SUCCEEDED] == 0, "a purge was lost")
            _require(counts[JobState.LEASED] == 0, "an ack was lost")
            _require(counts[JobState.READY] == waiting + 1, "an enqueue was lost")
    return f"{waiting} jobs wait, {len(leases)} finished in the reserve, a worker started, a snapshot was taken"


def _enqueue_until_refused(store: FileStore) -> tuple[list[c.Lease], int]:
    """Jobs that have ended and jobs that run; then take all the room, and enqueue until it is refused."""
    for _ in range(ENDED // 100):
        store.enqueue([_job(f"ended-{store.totals().seq}-{number}") for number in range(100)])
        ended = store.claim("worker", ["q"], 100)
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in ended])
    store.enqueue([_job(f"running-{number}") for number in range(RUNNING)])
    leases = store.claim("worker", ["q"], RUNNING)
    _take_all_room(Path(store._path).parent / "ballast")
    waiting = 0
    for batch in range(1_000):
        try:
            store.enqueue([_job(f"more-{batch}-{number}") for number in range(10)])
        except Unavailable as error:
            _require(" MB or more" in str(error), f"the refusal does not name the remedy: {error}")
            return leases, waiting
        waiting += 10
    raise AssertionError("enqueue was never refused")


def _ack_one_by_one(store: FileStore, leases: Sequence[c.Lease]) -> None:
    for number, lease in enumerate(leases):
        result = LONG_RESULT if number < LONG_RESULTS else None
        try:
            (acked,) = store.ack([c.AckReport(lease.job.id, lease.token, result)])
        except Unavailable as error:
            raise AssertionError(f"ack {number} of {len(leases)} was refused: {error}") from None
        _require(acked == c.Acked(lease.job.id), f"ack {number} returned {acked}")


def _take_snapshot(store: FileStore, folder: Path) -> None:
    """As the refusal advises: purge what has finished, then take a snapshot."""
    used = _log_bytes(folder)
    while store.purge(c.JobFilter(states=frozenset({JobState.SUCCEEDED})), by="ada", reason="room", limit=500).job_ids:
        pass
    ended = _run("wal", "snapshot", str(folder))
    _require(ended.exit_code == 0, f"wal snapshot exited with {ended.exit_code}: {ended.output}")
    _require("covers the log" in ended.output, f"no snapshot was taken: {ended.output}")
    left = _log_bytes(folder)
    _require(left < used, f"the snapshot freed nothing: {used} bytes before, {left} after")


def _require_reported(folder: Path) -> None:
    for command in ("stats", "health"):
        disk = _asked(folder, command)["disk"]
        _require(disk["is_full"] and disk["needed_bytes"] > 0, f"{command} does not report the full disk: {disk}")
        _require(disk["reserve_bytes"] > SEGMENT_BYTES, f"{command} reports no reserve: {disk}")
        ended = _run(command, "--url", f"file:{folder}")
        _require("the disk is full" in ended.output, f"{command} says nothing of the disk: {ended.output}")


def _asked(folder: Path, command: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_run(command, "--json", "--url", f"file:{folder}").stdout)
    return document


def _start_a_worker(folder: Path, work: Path) -> None:
    """The first one: it declares its limits, which no process of this folder has done, and publishes its record."""
    (work / "small_app.py").write_text(APP)
    url = f"file:{folder}?segment_bytes={SEGMENT_BYTES}"
    worker = subprocess.Popen(
        [sys.executable, "-m", "leasemill", "worker", "small_app:app", "--worker-id", "first"],
        cwd=work,
        env={**os.environ, "LEASEMILL_URL": url, "PYTHONPATH": os.pathsep.join([str(work), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + START_LIMIT_S
        while worker.poll() is None and time.monotonic() < until:
            if _run("health", "--worker", "first", "--url", url).exit_code == 0:
                break
            time.sleep(0.1)
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=START_LIMIT_S)
    finally:
        worker.kill()
    _require(worker.returncode == 0, f"the worker exited with {worker.returncode}: {log[-2_000:]}")
    _require("worker started" in log, f"the worker did not start: {log[-2_000:]}")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def _last_segment(folder: Path) -> str:
    """Its name begins with its position. Their number says nothing: on a full disk the store itself covers some."""
    return max(path.name for path in folder.glob("segment-*") if path.suffix != ".new")


def _log_bytes(folder: Path) -> int:
    total = 0
    for path in (*folder.glob("segment-*"), *folder.glob("snapshot-*")):
        with suppress(FileNotFoundError):  # covered meanwhile
            total += path.stat().st_size
    return total


def _refused(store: FileStore, who: str) -> None:
    try:
        store.enqueue([_job("not this one")])
    except Unavailable:
        return
    raise AssertionError(f"{who} was not refused")


def _take_all_room(ballast: Path) -> None:
    """To the last block, also when others free some meanwhile."""
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        return
    finally:
        os.close(fd)


def _job(job_id: str) -> JobSpec:
    """Its lease outlasts the run."""
    return JobSpec(job_id, "q", "k", b'"%s"' % (b"x" * 100), policy=Policy(lease_ttl_us=600_000_000))


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise AssertionError(what)
