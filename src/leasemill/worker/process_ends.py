"""What follows the end of a process: what its exit code means, when another is started, which deaths are unrecorded.

Pure: the supervisor passes in the time and does what is decided. It imports nothing of the worker, as the supervisor.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

EXIT_OVERRUN: Final = 6
"""It did not stop within its shutdown timeout (its event loop or its store hung)."""
EXIT_CRASH_LOOP: Final = 7
"""The supervisor gave up: every process has died several times in a row soon after its start."""
EXIT_REPLACE: Final = 75  # EX_TEMPFAIL of sysexits.h
"""It has done as much as it may (--max-jobs, --max-memory): start another."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 10.0
KEPT_S: Final = 600.0
"""Then most leases have expired anyway."""


# Exit codes ------------------------------------------------------------------------------------------------------


def exit_status(return_code: int) -> int:
    """As a shell reports it: 128 and the signal's number for a process that a signal ended."""
    return return_code if return_code >= 0 else 128 - return_code


def described(return_code: int) -> str:
    """Return the exit status in words: `exit status 137 (SIGKILL)`."""
    text = f"exit status {exit_status(return_code)}"
    if return_code >= 0:
        return text
    try:
        return f"{text} ({signal.Signals(-return_code).name})"
    except ValueError:  # a real-time signal
        return f"{text} (signal {-return_code})"


# Restarts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartPace:
    healthy_s: float = 5.0
    """A process that was up for this long ran well: the next one starts at once."""
    first_s: float = 1.0
    longest_s: float = 30.0
    most_deaths: int = 5
    """When each process has died this many times in a row, soon after its start, it is a crash loop."""


@dataclass(slots=True)
class Restarts:
    """How often the processes of one slot have died in a row, soon after their start."""

    pace: RestartPace
    quick_deaths: int = 0
    """How many processes in a row have died soon after their start."""

    def delay_s(self, up_s: float | None) -> float:
        """How long to wait after the death of a process that was up for so long; None: it never was."""
        if self.is_healthy(up_s):
            self.quick_deaths = 0
            return 0.0
        self.quick_deaths += 1
        return min(self.pace.longest_s, self.pace.first_s * (1 << min(self.quick_deaths - 1, 20)))

    def is_healthy(self, up_s: float | None) -> bool:
        return up_s is not None and up_s >= self.pace.healthy_s

    def are_given_up(self, up_s: float | None) -> bool:
        """Whether this slot is in a crash loop; `up_s` is how long its present process has been up, if it is."""
        return self.quick_deaths >= self.pace.most_deaths and not self.is_healthy(up_s)


# Deaths that no process has recorded yet -------------------------------------------------------------------------


@dataclass(slots=True)
class ChildDeath:
    worker: str
    instance: str
    cause: str
    died_at: float
    tries: int = 0
    next_try_at: float = 0.0


class PendingDeaths:
    """The deaths that no process has confirmed.

    A supervisor opens no store, so it passes a death to a process that has one. That process may be stopped, die or not
    reach the store: until one confirms the death, it is passed to another, which changes nothing if it was recorded.
    """

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
