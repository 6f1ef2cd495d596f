"""Calls the app's observers so that none of them can do harm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Final, ParamSpec

from leasemill.api.observer import Observer

log = logging.getLogger("leasemill.worker")

P = ParamSpec("P")


class Observers:
    """The observers of one worker. From any thread."""

    def __init__(self, observers: Iterable[Observer] = (), worker_id: str = "") -> None:
        self._observers = tuple(observers)
        self._worker_id = worker_id
        self.are_there = bool(self._observers)
        """Look here first: with none of them nothing is put together for them."""
        self.are_exporting = any(one.is_exporting for one in self._observers)
        self._called: dict[str, list[tuple[Observer, Callable[..., None]]]] = {}
        self._failed: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def notify(self, method: Callable[Concatenate[Any, P], None], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this method of each: `notify(Observer.claimed, leases, took_s)`."""
        name = method.__name__
        wanted = self._called.get(name)
        for observer, call in self._callable(name, method) if wanted is None else wanted:
            try:
                call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (the user's observer)
                self._log(observer, name, error)

    def _callable(self, name: str, method: Callable[..., None]) -> list[tuple[Observer, Callable[..., None]]]:
        """Those that want to know; looked up once, for it is called several times for every job."""
        found = [(one, getattr(one, name)) for one in self._observers]
        wanted = [(one, call) for one, call in found if getattr(call, "__func__", None) is not method]
        self._called[name] = wanted
        return wanted

    def _log(self, observer: Observer, method: str, error: Exception) -> None:
        """Once for each method: what fails for one job may fail for a million."""
        with self._lock:
            if (id(observer), method) in self._failed:
                return
            self._failed.add((id(observer), method))
        name = f"{type(observer).__qualname__}.{method}"
        sentence = "observer %s failed, which changes nothing for the jobs; it is not logged again: %r"
        log.error(sentence, name, error, exc_info=error, extra={"worker": self._worker_id})


NOBODY: Final = Observers()
