"""`--reload`: one process, stopped and started again when the app's files change.

A process that cannot import the app is not started again before the next change: somebody is at work on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leasemill.operator.wording import listed
from leasemill.worker.supervisor import watching
from leasemill.worker.supervisor.child import Child
from leasemill.worker.supervisor.collecting import Collected
from leasemill.worker.supervisor.supervisor import FATAL, Place, Processes, Supervisor

log = logging.getLogger("leasemill.supervisor")

QUIET_S: Final = 0.25
"""Changes are collected until none has come for so long: an editor, or a checkout, makes many at once."""
GRACE_S: Final = 1.0
"""How long running jobs have to end before they are given back."""
NAMES_SHOWN: Final = 3


class ReloadingSupervisor(Supervisor):
    def __init__(self, processes: Processes, folders: Sequence[Path], collected: Collected | None = None) -> None:
        super().__init__(processes, collected)
        self._folders = folders
        self._changed: set[Path] = set()
        self._restart_at: float | None = None
        self._hurry_at: float | None = None

    def _begin(self) -> None:
        super()._begin()
        watching.watch(self._folders, lambda paths: self.call(lambda: self._collect(paths)))
        log.info("watching %s for changes", listed(sorted(map(str, self._folders)), NAMES_SHOWN))

    def _collect(self, paths: set[Path]) -> None:
        self._changed |= paths
        self._restart_at = time.monotonic() + QUIET_S

    def _look(self) -> None:
        now, current = time.monotonic(), self.places[0].current
        if self._restart_at is not None and now >= self._restart_at and not self._stops:
            log.info("%s changed: restarting", listed(sorted(path.name for path in self._changed), NAMES_SHOWN))
            self._changed.clear()
            self._restart_at = None
            self.restart()
        if self._hurry_at is not None and (current is None or now >= self._hurry_at):
            self._hurry_at = None
            if current is not None and current.stops == 1:
                self._stop(current)
        super()._look()

    def _wait_s(self) -> float:
        due = [at - time.monotonic() for at in (self._restart_at, self._hurry_at) if at is not None]
        return max(0.0, min([super()._wait_s(), *due]))

    def restart(self) -> None:
        place, now = self.places[0], time.monotonic()
        if place.current is None:
            place.start_at = now
        elif not place.current.stops:
            self._stop(place.current)
            self._hurry_at = now + GRACE_S

    def _died(self, place: Place, child: Child, return_code: int) -> None:
        if child.is_ready and return_code not in FATAL:
            delay_s = place.restarts.delay_s(child.up_s(time.monotonic()))
            if not place.restarts.are_given_up(None):
                place.start_at = time.monotonic() + delay_s
                return
        place.restarts.quick_deaths = 0
        log.warning("waiting for a change before the next start")
