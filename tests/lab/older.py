"""The version before rules, from its wheel: what it does with a store of this one.

`tests/older` has the wheel as it was built, never to be built again: it stands for the processes that are out there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, ChainedJob, JobSpec, LimitUse, Rules, UniqueKey
from leasemill.kernel.schedule import ScheduleSpec, TickFire
from leasemill.store.base import Store

QUEUE: Final = "mail"
HOUR: Final = 3_600 * SECOND

WHEEL: Final = Path(__file__).parents[1] / "older" / "leasemill-0.1.0-py3-none-any.whl"


def _enqueued(store: Store, job: JobSpec) -> str:
    assert store.enqueue([job]) == [c.Enqueued(job.id)]
    return job.id


def _member(store: Store) -> str:
    store.create_group("group")
    return _enqueued(store, JobSpec("ruled", QUEUE, "send", rules=Rules(group="group")))


def _ticked(store: Store) -> str:
    tick = store.time() // HOUR * HOUR
    spec = ScheduleSpec("hourly", "@hourly", "UTC", JobSpec("", QUEUE, "send"))
    store.run(c.SetSchedule(spec, tick, tick - 1, "ada", "a test"))
    (fired,) = store.run(c.FireTicks([TickFire("hourly", 1, tick, (tick,), tick + HOUR)], store.time()))
    assert isinstance(fired, c.TickFired)
    (job_id,) = fired.job_ids
    return job_id


RULED: Final[dict[str, Callable[[Store], str]]] = {
    "headers": lambda store: _enqueued(store, JobSpec("ruled", QUEUE, "send", headers={"trace": "1"})),
    "unique": lambda store: _enqueued(store, JobSpec("ruled", QUEUE, "send", rules=Rules(unique=UniqueKey("key")))),
    "limits": lambda store: _enqueued(
        store, JobSpec("ruled", QUEUE, "send", rules=Rules(limits=(LimitUse("stripe"),)))
    ),
    "groups": _member,
    "chains": lambda store: _enqueued(
        store, JobSpec("ruled", QUEUE, "send", rules=Rules(chain=(ChainedJob(QUEUE, "send"),)))
    ),
    "schedules": _ticked,
}
"""What the version before does not know, each used once: makes a job that can be claimed, and returns its id."""


class OlderProcess:
    """A process of the version before, that is sent statements and returns what they print.

    It runs in this interpreter's environment, with the package from the wheel in front.
    """

    def __init__(self, folder: Path) -> None:
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )

    def does(self, statements: str) -> str:
        """What these print; or the name of the error that they raise, and what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(repr(statements) + "\n")
        self._process.stdin.flush()
        answer: str = eval(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


LOOP: Final = """
import contextlib, io, sys
known = {}
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(eval(line), known)
        answer = printed.getvalue().strip()
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print(repr(answer), flush=True)
"""
