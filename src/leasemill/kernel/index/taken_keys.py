"""The index of unique keys: the job that took a key last, in each queue. A key belongs to its queue: the two together
are its name (U1).

Most keys are used in one queue only, and there may be millions: such a key has one entry and no dictionary of queues.
What must never happen here: an entry of one queue that is found by, or replaced through, another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

ANY_QUEUE: Final = ""
"""The queue of a key that was kept for a forgotten job before keys belonged to queues: which one is not on record. Such
a key is held in every queue until its time is over (U3)."""


class Key(Struct, frozen=True, gc=False):
    """The job that took a unique key last, and the time until which it is kept whatever becomes of the job (0:
    none)."""

    job_id: str
    until: int
    queue: str


class TakenKeys:
    """The latest taker of each key in each queue."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, Key | dict[str, Key]] = {}

    def get(self, queue: str, key: str) -> Key | None:
        found = self._by_key.get(key)
        if isinstance(found, dict):
            return found.get(queue)
        return found if found is not None and found.queue == queue else None

    def put(self, key: str, taken: Key) -> None:
        found = self._by_key.get(key)
        if isinstance(found, dict):
            found[taken.queue] = taken
        elif found is None or found.queue == taken.queue:
            self._by_key[key] = taken
        else:
            self._by_key[key] = {found.queue: found, taken.queue: taken}

    def remove(self, queue: str, key: str) -> None:
        found = self._by_key[key]
        if isinstance(found, dict):
            del found[queue]
            if len(found) == 1:
                (self._by_key[key],) = found.values()
        else:
            del self._by_key[key]

    def elsewhere(self, queue: str, key: str) -> Iterable[Key]:
        """The entries of the same text in other queues."""
        found = self._by_key.get(key)
        if found is None:
            return ()
        return [one for one in _entries(found) if one.queue != queue]

    def items(self) -> Iterator[tuple[str, Key]]:
        for key, found in self._by_key.items():
            for one in _entries(found):
                yield key, one


def _entries(found: Key | dict[str, Key]) -> Iterable[Key]:
    return found.values() if isinstance(found, dict) else (found,)
