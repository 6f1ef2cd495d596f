"""Deaths that no process has recorded yet.

A supervisor opens no store, so it passes a death to a process that does. That one may be stopped, die or not reach the
store: until one of them confirms it, the death is passed to another, which changes nothing if it was recorded before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 10.0
KEPT_S: Final = 600.0
"""Then most leases have expired anyway."""


@dataclass(slots=True)
class ChildDeath:
    worker: str
    instance: str
    cause: str
    died_at: float
    tries: int = 0
    next_try_at: float = 0.0


class UnrecordedDeaths:
    def __init__(self) -> None:
        self._deaths: dict[str, ChildDeath] = {}

    def add(self, death: ChildDeath) -> None:
        self._deaths[death.instance] = death

    def recorded(self, instance: str) -> None:
        self._deaths.pop(instance, None)

    def all_of(self, now: float) -> list[ChildDeath]:
        """Every one, for a process that starts; to be tried elsewhere if it does not confirm them."""
        return self._tried(list(self._deaths.values()), now)

    def due(self, now: float) -> list[ChildDeath]:
        """Those to pass on now."""
        for death in [one for one in self._deaths.values() if now - one.died_at > KEPT_S]:
            del self._deaths[death.instance]
        return self._tried([one for one in self._deaths.values() if one.next_try_at <= now], now)

    def due_at(self) -> float | None:
        return min((death.next_try_at for death in self._deaths.values()), default=None)

    def _tried(self, deaths: list[ChildDeath], now: float) -> list[ChildDeath]:
        for death in deaths:
            death.next_try_at = now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**death.tries)
            death.tries += 1
        return deaths
