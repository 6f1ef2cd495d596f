"""Exit codes by which a process of a worker, and its supervisor, report how they ended. Nothing is imported here."""

from typing import Final

EXIT_OVERRUN: Final = 6
"""It did not stop within its shutdown timeout (its event loop or its store hung)."""
EXIT_CRASH_LOOP: Final = 7
"""Of a supervisor: every process has died several times in a row soon after its start."""
EXIT_REPLACE: Final = 75  # EX_TEMPFAIL of sysexits.h
"""It has done as much as it may (--max-jobs, --max-memory): start another."""
