"""Workers in separate processes, to be stopped, continued and killed at chosen moments.

    with WorkerProcess("shop:app", url="file:./jobs", log=folder / "worker.log") as worker:
        worker.stop(when=handler_is_running)     # SIGSTOP, never while it holds a lock others wait for
        worker.resume()

What must never happen here: a process that outlives its block, or one stopped while it holds the lock of the folder
(which would stop every other, W11) or is in the middle of a transaction.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from leasemill.store.file.folder import LOCK_NAME
from leasemill.store.file.options import parse_folder_url
from leasemill.store.url import URL_VARIABLE

PROGRAM: Final = "from leasemill.cli import main; main()"
LOCK_PATIENCE_S: Final = 0.2
"""The folder's lock is held for microseconds, a little longer when a segment ends; for longer only by a stopped one."""
SESSION_NAME_BYTES: Final = 63
RETRY_S: Final = 0.007
END_S: Final = 60.0


class TookTooLong(AssertionError):
    """A condition did not become true in time."""


def wait_until(condition: Callable[[], object], what: str, limit_s: float = 60.0, every_s: float = 0.005) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TookTooLong(f"timed out after {limit_s:g} s waiting for {what}")
        time.sleep(every_s)


class WorkerProcess:
    """`leasemill worker` in its own process and session, whose log is kept as JSON lines."""

    def __init__(
        self,
        target: str,
        *,
        url: str,
        log: Path,
        worker_id: str | None = None,
        options: Sequence[str] = (),
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.id = worker_id or log.stem
        self._log = log
        self._url = url
        arguments = [target, "--worker-id", self.id, "--log-format", "json", *options]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "PGAPPNAME": session_name(self.id), **(environment or {}), URL_VARIABLE: url},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def check_running(self) -> None:
        if self.exit_code is not None:
            raise TookTooLong(f"worker {self.id} has ended with {self.exit_code}:\n{self.log()[-2_000:]}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would, in whatever it does (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self, when: Callable[[], object] = lambda: True, limit_s: float = 60.0) -> None:
        """SIGSTOP it at a moment when it holds no lock of the store and `when`, asked while it stands still, is true;
        until then it is continued and stopped again."""
        deadline = time.monotonic() + limit_s
        while True:
            self.signal(signal.SIGSTOP)
            self._await_stopped()
            if holds_no_lock(self._url, self.id) and when():
                return
            self.resume()
            self.check_running()
            if time.monotonic() >= deadline:
                raise TookTooLong(f"worker {self.id} could not be stopped at the right moment within {limit_s:g} s")
            time.sleep(RETRY_S)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self, limit_s: float = END_S) -> int:
        """Send SIGTERM, and return the exit code."""
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s: float = END_S) -> int:
        """Wait until it has ended, and return the exit code."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"worker {self.id} did not end within {limit_s:g} s:\n{self.log()[-2_000:]}") from None

    def close(self) -> None:
        """Kill it and its children, whatever state it is in."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its group: it leads a session of its own
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _await_stopped(self) -> None:
        """Wait until every thread stands still, or the process has ended: a signal takes effect after it was sent."""
        if sys.platform == "linux":
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        else:
            time.sleep(0.05)


# Locks -----------------------------------------------------------------------------------------------------------


def holds_no_lock(url: str, worker_id: str) -> bool:
    """Return whether a stopped worker holds no lock of the store that others wait for.

    Behind a server it never does: the server takes the locks.
    """
    if url.startswith("file:"):
        return _is_folder_free(parse_folder_url(url)[0] / LOCK_NAME)
    return url.startswith("http") or _are_rows_free(url, session_name(worker_id))


def session_name(worker_id: str) -> str:
    """Return the name of a worker's sessions; PostgreSQL cuts longer names."""
    return worker_id[-SESSION_NAME_BYTES:]


def _is_folder_free(path: Path) -> bool:
    """Take the folder's lock, to see that no one has it. Running workers have it for a moment, so this is retried."""
    if not path.exists():
        return True
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    try:
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.000_5)
        return False
    finally:
        os.close(fd)  # and with it the lock


def _are_rows_free(url: str, session: str) -> bool:
    """Look at the worker's sessions. One between two statements of a transaction keeps its locks; one that is in a
    statement ends it by itself."""
    import psycopg

    from leasemill.store.postgres.driver.url import parse_url

    question = "select state from pg_stat_activity where application_name = %s and datname = current_database()"
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with psycopg.connect(parse_url(url)[0], autocommit=True, application_name="leasemill look") as connection:
        while True:
            states = {state for (state,) in connection.execute(question, [session])}
            if "active" not in states or time.monotonic() >= deadline:
                return states <= {"idle", "disabled", None}
            time.sleep(0.002)
