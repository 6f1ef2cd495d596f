"""A real process, killed by strace at a system call; what was acknowledged must be there, and nothing half.

`python -m tests.crash.killed FOLDER JOURNAL` runs the script: a walk whose seed and clock are fixed, with rotations and
a snapshot. Its journal has one byte for each answer it got.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.file.build import build
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from tests.crash.lab import digest_of
from tests.crash.walk import Model, Walk, asked

CALLS = ("pwrite64", "fdatasync", "fsync", "rename")
STEPS = 120
SNAPSHOT_AT = (50, 100)
OPTIONS = FileOptions(segment_bytes=2048, does_maintenance=False)


def script(clock: ManualClock) -> Iterator[tuple[c.Command[Any] | None, Model]]:
    """The commands (None: a snapshot), with the clock at the time of each, and the kernel alone behind it."""
    source, model = random.Random(7), Model()
    walk = Walk(source)
    for step in range(STEPS):
        if step in SNAPSHOT_AT:
            yield None, model
        command = walk.next(model.state)
        model.answer(command, clock.now())
        yield command, model
        clock.advance(us=source.choice((0, 1_000, 400_000)))


def run_script(folder: Path, journal: Path) -> None:
    acknowledged = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    clock = ManualClock()
    with FileStore(folder, options=OPTIONS, clock=clock) as store:
        for command, _ in script(clock):
            if command is None:
                build(folder, keep_segments=False)
            else:
                asked(store, command)
            os.write(acknowledged, b".")


def require_strace() -> None:
    if shutil.which("strace") is None:
        raise AssertionError("strace is not installed: without it no process is killed inside a system call")


def kill_at(work: Path, call: str, count: int) -> bool:
    """The script, killed at the `count`th call of this name; answers whether it got that far."""
    folder, journal = work / f"{call}-{count}", work / f"{call}-{count}.journal"
    inject = f"inject={call}:signal=SIGKILL:when={count}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
    script_command = [sys.executable, "-m", "tests.crash.killed", str(folder), str(journal)]
    ended = subprocess.run([*command, *script_command], check=False, capture_output=True, text=True)
    if ended.returncode not in (0, 137, -9):
        raise AssertionError(f"{call} {count}: the script ended with {ended.returncode}: {ended.stderr[-500:]}")
    check(folder, journal.stat().st_size if journal.exists() else 0, f"killed at {call} {count}")
    return ended.returncode != 0


def check(folder: Path, acknowledged: int, what: str) -> None:
    clock = ManualClock()
    clock.advance(s=3_600)
    digests = ["nothing", *(settled(model, clock.now()) for _, model in script(ManualClock()))]
    with FileStore(folder, options=OPTIONS, clock=clock) as store:
        found = digest_of(store)
        may_be = digests[acknowledged : acknowledged + 2] if acknowledged else [Model().digest(), digests[1]]
        if found not in may_be:
            raise AssertionError(
                f"{what}: {acknowledged} steps were acknowledged, and the state is that of none of them"
            )
        store.enqueue([JobSpec("one more", "q", "k")])
    with FileStore(folder, options=OPTIONS, clock=clock) as store:
        if store.job("one more") is None:
            raise AssertionError(f"{what}: what was enqueued afterwards is gone")


def settled(model: Model, now: int) -> str:
    """The digest of the state that a process finds which opens the folder then."""
    later = model.copy()
    later.settle(now)
    return later.digest()


if __name__ == "__main__":
    run_script(Path(sys.argv[1]), Path(sys.argv[2]))
