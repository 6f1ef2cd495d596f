"""Starting a handler's process: where it finds the app, and what it is given.

Spawned, never forked: a forked child would have the worker's locks, connections and file locks, in whatever state its
threads left them. What must never happen: a process that outlives its worker.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

import leasemill
from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.worker.processes import log_relay
from leasemill.worker.processes.channel import MessageChannel
from leasemill.worker.processes.messages import EXIT_CUT_OFF, AppTarget, Begin, CannotBegin

MAIN: Final = "__main__"
ADVICE: Final = (
    'executor="process" imports the app in a new process: make the app in a module, and give it a name there, for '
    "example `app = App()` in tasks.py"
)

_code: Final = (
    "import sys; sys.path.append({path!r}); from leasemill.worker.processes.child import main; main({descriptor})"
)


class Importing:
    """Whether this process is a handler's that imports the app: what a program starts unguarded would start again."""

    is_under_way = False

    @classmethod
    def check(cls) -> None:
        if cls.is_under_way:
            raise Invalid(
                'a worker is started where the program is imported for executor="process": start it behind '
                '`if __name__ == "__main__":`'
            )


def target_of(app: App) -> AppTarget:
    """The module and the name by which a new process finds this app."""
    if sys.platform == "win32":
        raise Invalid('executor="process" needs Linux or macOS: leave it out')
    declaring = {job.function.__module__ for job in app.jobs.values()}
    found = [
        (module_name != MAIN, module_name in declaring, module_name, name)
        for module_name, module in list(sys.modules.items())
        if module_name != "__mp_main__" and isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        if value is app and (module_name == MAIN or module.__spec__ is not None)
    ]
    if not found:
        raise Invalid(f"the app is not a module-level variable: {ADVICE}")
    *_, module_name, name = max(found)
    return AppTarget(module_name, name, _main() if module_name == MAIN else None)


def _main() -> dict[str, str]:
    """How to import the program that runs, as `multiprocessing.spawn` needs it."""
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).exists():
        raise Invalid(f"the app is part of a program that has no file: {ADVICE}")
    return {"init_main_from_path": str(Path(path).resolve())}


def begin_message(app: App, target: AppTarget) -> Begin:
    here = str(Path.cwd())
    store = app.store
    return Begin(
        target,
        [path or here for path in sys.path],
        sys.argv,
        here,
        store.own_url,
        log_relay.levels(),
        store.name,
    )


class Spawned:
    """A handler's process, from its start until it is reaped. Signals reach it and what it started; from any thread."""

    def __init__(self, begin: Begin, worker_id: str) -> None:
        own, childs = socket.socketpair()
        path = str(Path(leasemill.__file__).parent.parent)
        code = _code.format(path=path, descriptor=childs.fileno())
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_flags(), "-c", code, f"handlers of worker {worker_id}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[childs.fileno()],
                process_group=0,  # a signal of the terminal is the worker's to handle; what it starts is killed with it
            )
        except BaseException:
            own.close()
            raise
        finally:
            childs.close()
        self.pid = self._process.pid
        self.channel = MessageChannel(own)
        self._reaping = threading.Lock()
        self.pidfd: int | None = None
        """Readable when the process has ended, where the system has such a thing."""
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self.pidfd = None
        with suppress(OSError):  # it has ended already, which is noticed where it is read
            self.channel.send(begin)

    def kill(self) -> None:
        """SIGKILL, to the process and to those it started in its group."""
        with self._reaping:
            if self._process.returncode is None:
                self._signal_group()

    def _signal_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has ended; on macOS zombies may not be signalled
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """The exit status of a process that has ended, negative: of a signal. What it started is killed."""
        with self._reaping:
            self._signal_group()  # not reaped yet, so the number is still its group's
            status = self._process.wait()
        self.channel.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        return status

    def is_running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _flags() -> list[str]:
    """The options of this interpreter that a handler may notice: -X dev, -W error, -O, and where modules come from."""
    own = sys.flags
    given = {"-E": own.ignore_environment, "-I": own.isolated, "-s": own.no_user_site, "-S": own.no_site}
    given |= {"-B": own.dont_write_bytecode, "-b": own.bytes_warning, "-O": own.optimize}
    flags = [flag for flag, times in given.items() for _ in range(times)]
    extended = [name if value is True else f"{name}={value}" for name, value in sys._xoptions.items()]
    return ["-P", *flags, *(f"-X{one}" for one in extended), *(f"-W{one}" for one in sys.warnoptions)]


# How it ended, or why it did not start, in words: for the job's record, and for people ----------------------------


CUT_OFF: Final = "its process closed its connection to the worker"


def cause_of(status: int) -> str:
    """How a process ended, in words."""
    if status == EXIT_CUT_OFF:
        return CUT_OFF
    if status >= 0:
        return f"its process ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed by {name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")


def no_start(refusal: CannotBegin | None, cause: str) -> str:
    if refusal is None:
        return f"a process for handlers could not start: {cause} while it imported the app"
    return (
        f"the app cannot be imported in a process for handlers: {refusal.why}\n"
        'With executor="process" the app\'s module is imported again, in a new process.\n' + refusal.traceback
    )
