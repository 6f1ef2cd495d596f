"""Which files `--reload` watches, and the thread that does. Needs watchfiles, an extra."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from leasemill.errors import Invalid

SUFFIXES: Final = frozenset({".py", ".pyx", ".pyd", ".so"})
IGNORED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
VIRTUALENV: Final = "pyvenv.cfg"


def check_installed() -> None:
    if find_spec("watchfiles") is None:
        raise Invalid("--reload needs watchfiles: pip install 'leasemill[reload]'")


def folders_of(module: str) -> list[Path]:
    """The package that an app's module is in, or else the folder it is in. Nothing is imported for it."""
    here = Path.cwd()
    spec = PathFinder.find_spec(module.partition(".")[0], [str(here), *sys.path])
    if spec is None:
        return [here]  # the process reports that there is no such module; it may be made
    if spec.submodule_search_locations:
        return [Path(location) for location in spec.submodule_search_locations]
    return [here if spec.origin is None else Path(spec.origin).parent]


def is_code(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a change of this file, in one of the watched folders, may change what the app does."""
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


def watch(folders: Sequence[Path], on_change: Callable[[set[Path]], None]) -> None:
    """Call this, in a thread, with the files of code that changed."""
    import watchfiles  # noqa: PLC0415  (an extra)

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every change
    resolved = [folder.resolve() for folder in folders]

    def run() -> None:
        # In a thread of its own no signal interrupts it; it ends with the process.
        for changes in watchfiles.watch(
            *resolved, watch_filter=lambda _, path: is_code(Path(path), resolved), debounce=200, raise_interrupt=False
        ):
            on_change({Path(path) for _, path in changes})

    threading.Thread(target=run, name="leasemill-reload", daemon=True).start()
