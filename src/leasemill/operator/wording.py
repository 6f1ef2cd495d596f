"""Plurals, lists that are cut off, and suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message about an unknown name; empty if no known name is similar."""
    from difflib import get_close_matches  # noqa: PLC0415  (`leasemill --help` must be quick)

    near = get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def without_room(needed_bytes: int) -> str:
    """What a full disk under a folder means."""
    return (
        f"new jobs are refused, running jobs can finish; free {-(-needed_bytes // 1_000_000):,} MB or more, or purge "
        "finished jobs and run `leasemill wal snapshot`"
    )
