"""Calls the app's observers so that none of them can do harm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from leasemill.api.observer import Observer

log = logging.getLogger("leasemill.worker")

P = ParamSpec("P")
_Wanted: TypeAlias = list[tuple[Observer, Callable[..., None]]]
"""Those that want to know, and what to call."""


class Observers:
    """The observers of one worker. From any thread."""

    def __init__(self, observers: Iterable[Observer] = (), worker_id: str = "") -> None:
        self._observers = tuple(observers)
        self._worker_id = worker_id
        self.are_there = bool(self._observers)
        """Look here first: with none of them nothing is put together for them."""
        self.are_exporting = any(one.is_exporting for one in self._observers)
        self._called: dict[str, _Wanted] = {}
        self._failed: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def notify(self, method: Callable[Concatenate[Any, P], None], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this method of each: `notify(Observer.claimed, leases, took_s)`."""
        name = method.__name__
        wanted = self._called.get(name)
        self._call(name, self._wanted(name, method) if wanted is None else wanted, *args, **kwargs)

    def notifier(self, method: Callable[Concatenate[Any, P], None]) -> Callable[P, None] | None:
        """What notifies of this, for what happens to every job; None: nobody wants to know."""
        wanted = self._wanted(method.__name__, method)
        return partial(self._call, method.__name__, wanted) if wanted else None

    def _call(self, name: str, wanted: _Wanted, *args: Any, **kwargs: Any) -> None:
        for observer, call in wanted:
            try:
                call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (the user's observer)
                self._log(observer, name, error)

    def _wanted(self, name: str, method: Callable[..., None]) -> _Wanted:
        """The observers that override a method, looked up once."""
        found = [(one, getattr(one, name)) for one in self._observers]
        wanted = [(one, call) for one, call in found if getattr(call, "__func__", None) is not method]
        self._called[name] = wanted
        return wanted

    def _log(self, observer: Observer, method: str, error: Exception) -> None:
        """Log an observer's error once for each method: what fails for one job may fail for a million."""
        with self._lock:
            if (id(observer), method) in self._failed:
                return
            self._failed.add((id(observer), method))
        name = f"{type(observer).__qualname__}.{method}"
        sentence = "observer %s failed, which changes nothing for the jobs; it is not logged again: %r"
        log.error(sentence, name, error, exc_info=error, extra={"worker": self._worker_id})


NOBODY: Final = Observers()
