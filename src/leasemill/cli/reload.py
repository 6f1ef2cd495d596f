"""`leasemill worker --reload`: one process, stopped and started again by watchfiles when the app's files change.

watchfiles.run_process starts the process, watches, and sends it SIGINT, then SIGKILL. What must never happen here: a
restart because of a file that is not code, such as the log of a store in the watched folder, or a process that is left
behind when the one that watches was killed.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leasemill.errors import Invalid
from leasemill.operator.wording import listed

if TYPE_CHECKING:
    from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.reload")

SUFFIXES: Final = frozenset({".py", ".pyx", ".pyd", ".so"})
IGNORED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
VIRTUALENV: Final = "pyvenv.cfg"
NAMES_SHOWN: Final = 3

QUIET_MS: Final = 250
"""Changes are collected until none has come for so long: an editor, or a checkout, makes many at once."""
LONGEST_MS: Final = 1000
"""But no longer than this: a store in the watched folder may be written all the time."""
GRACE_S: Final = 1.0
"""How long running jobs have to end before they are released."""
STOP_S: Final = 4
"""How long the process has to stop before it is killed: the grace, 2 s for a shutdown that waits for no handler, and a
second to spare."""
PARENT_LOOK_S: Final = 1.0


def check_installed() -> None:
    if find_spec("watchfiles") is None:
        raise Invalid("--reload needs watchfiles: pip install 'leasemill[reload]'")


def folders_of(module: str) -> list[Path]:
    """Return the package that an app's module is in, or else the module's folder. Nothing is imported for it."""
    here = Path.cwd()
    spec = PathFinder.find_spec(module.partition(".")[0], [str(here), *sys.path])
    if spec is None:
        return [here]  # the process reports that there is no such module; it may be written yet
    if spec.submodule_search_locations:
        return [Path(location) for location in spec.submodule_search_locations]
    return [here if spec.origin is None else Path(spec.origin).parent]


def is_code(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a change of this file, in one of the watched folders, may change what the app does.

    The filters of watchfiles look at the whole path, and would ignore an app that is itself in `site-packages`.
    """
    if path.suffix not in SUFFIXES:
        return False
    for folder in folders:
        if path.is_relative_to(folder):
            names = path.relative_to(folder).parent.parts
            between = [folder.joinpath(*names[: depth + 1]) for depth in range(len(names))]
            if not any(_is_ignored(one) for one in between):
                return True
    return False


def _is_ignored(folder: Path) -> bool:
    return folder.name in IGNORED or folder.name.startswith(".") or (folder / VIRTUALENV).exists()


def run_reloading(command: Sequence[str], folders: Sequence[Path]) -> None:
    """Run the command until SIGTERM or SIGINT; restart it when code in these folders changes."""
    import watchfiles

    # It logs every change, and the end of a process that could not import the app, which has said so itself.
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    watched = [folder.resolve() for folder in folders]

    def log_changes(changes: Iterable[tuple[Any, str]]) -> None:
        log.info("%s changed: restarting", listed(sorted({Path(path).name for _, path in changes}), NAMES_SHOWN))

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    log.info("watching %s for changes", listed(sorted(map(str, watched)), NAMES_SHOWN))
    watchfiles.run_process(
        *watched,
        target=shlex.join(command),
        target_type="command",
        callback=log_changes,
        watch_filter=lambda _, path: is_code(Path(path), watched),
        debounce=LONGEST_MS,
        step=QUIET_MS,
        sigint_timeout=STOP_S,
    )


class ReloadedProcess:
    """The started process's side: it stops within the time that watchfiles gives it."""

    def __init__(self) -> None:
        """Call this before the app is imported: until its worker runs, nothing is held, and SIGINT may just end it."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._parent = os.getppid()
        self._is_stopping = False
        threading.Thread(target=self._watch_parent, name="leasemill-reload", daemon=True).start()

    def stop(self, worker: Worker) -> None:
        """Stop the worker; its jobs have the grace to end. Called for every signal.

        One Ctrl-C arrives twice, from the terminal and from watchfiles, so a second signal must not hurry the worker:
        only the time does.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        worker.stop()
        hurry = threading.Timer(GRACE_S, worker.stop, kwargs={"now": True})
        hurry.daemon = True
        hurry.start()

    def _watch_parent(self) -> None:
        """Stop when the process that watches is gone: nothing else would ever stop this one."""
        while os.getppid() == self._parent:
            time.sleep(PARENT_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)
