"""When a process that died is started again, and when that is given up. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass


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
    """Of one place among the processes."""

    pace: RestartPace
    quick_deaths: int = 0
    """In a row."""

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
        """Whether this place is in a crash loop; `up_s` is how long its present process has been up, if it is."""
        return self.quick_deaths >= self.pace.most_deaths and not self.is_healthy(up_s)


def exit_status(return_code: int) -> int:
    """As a shell reports it: 128 and the signal's number for a process that a signal ended."""
    return return_code if return_code >= 0 else 128 - return_code


def described(return_code: int) -> str:
    """For people: `exit status 137 (SIGKILL)`."""
    text = f"exit status {exit_status(return_code)}"
    if return_code >= 0:
        return text
    try:
        return f"{text} ({signal.Signals(-return_code).name})"
    except ValueError:  # a real-time signal
        return f"{text} (signal {-return_code})"
