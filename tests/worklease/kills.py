"""The partitioned stream's orchestrator, killed at random moments and started again until the stream has ended."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from leasemill.store.url import URL_VARIABLE
from tests.lab.processes import TookTooLong

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "partitioned_stream" / "payments.py"
RECORDS_FOR_EACH_KILL = 60
PACE_S = 0.002
PACE_OF_KILLED_S = 0.05
"""So slow that the stream outlasts a machine that stands still for seconds."""
AT_START = 0.2
"""Share of the kills that come while the orchestrator is starting, whatever it does then; the others while it works."""
LIFE_LIMIT_S = 100.0


@dataclass(frozen=True)
class Outcome:
    audit: str
    holds: bool
    kills_at_work: int = 0
    tried_again: int = 0
    """Offsets that more than one process worked on: killed in the middle, and taken up by the next."""


class Scene:
    """A stream in a folder of its own, and the orchestrators that work on it."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self.folder = folder
        self._environment = {**os.environ, URL_VARIABLE: url}
        self._draw = random.Random(seed)
        shutil.copy(EXAMPLE, folder)

    def run(self, kills: int) -> Outcome:
        self._call("make", "--records", str(max(100, kills * RECORDS_FOR_EACH_KILL)))
        at_work = 0
        for _ in range(kills):
            at_work += self._killed()
        self._call("consume", "--pace", str(PACE_S))
        return replace(self.audit(), kills_at_work=at_work, tried_again=self._tried_again())

    def audit(self) -> Outcome:
        process = self._popen("audit", output=subprocess.PIPE)
        output, _ = process.communicate(timeout=LIFE_LIMIT_S)
        return Outcome(output.decode(), process.returncode == 0)

    def _killed(self) -> bool:
        """One life and its end; whether it had begun to work."""
        before = self._tries()
        process = self._popen("consume", "--pace", str(PACE_OF_KILLED_S))
        try:
            if self._draw.random() < AT_START:
                time.sleep(self._draw.uniform(0, 0.4))
            else:
                self._await_work(process, before)
                time.sleep(self._draw.uniform(0, 0.1))
        finally:
            process.kill()
        code = process.wait()
        assert code == -signal.SIGKILL, f"the orchestrator ended by itself, with {code}: make the stream longer"
        return self._tries() > before

    def _await_work(self, process: subprocess.Popen[bytes], before: int) -> None:
        deadline = time.monotonic() + LIFE_LIMIT_S
        while self._tries() == before:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TookTooLong(f"the orchestrator does not get to work (exit code {process.poll()})")
            time.sleep(0.002)

    def _call(self, *arguments: str) -> None:
        process = self._popen(*arguments)
        try:
            assert process.wait(timeout=LIFE_LIMIT_S) == 0, f"{arguments[0]} ended with {process.returncode}"
        finally:
            process.kill()

    def _popen(self, *arguments: str, output: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, EXAMPLE.name, *arguments], cwd=self.folder, env=self._environment, stdout=output
        )

    def _tries(self) -> int:
        return self._asked("select count(*) from tries")

    def _tried_again(self) -> int:
        return self._asked(
            "select count(*) from (select 1 from tries group by partition, record having count(distinct process) > 1)"
        )

    def _asked(self, query: str) -> int:
        path = self.folder / "ledger.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            try:
                (count,) = connection.execute(query).fetchone()
            except sqlite3.OperationalError:
                return 0  # killed before it had made its tables
        return int(count)
