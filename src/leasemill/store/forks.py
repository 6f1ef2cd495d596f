"""What starts over in a forked child: its parent's threads are not there, their locks may be held for ever, and its
connections and descriptors are not the child's to use.

It happens in the fork itself, before the child can start a thread: whichever of its threads asks first, all of them
find what is their own.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class StartsOver(Protocol):
    def after_fork(self) -> None:
        """In the child, where no other thread runs yet. Must not wait for anything."""


_IN_USE: Final[weakref.WeakSet[StartsOver]] = weakref.WeakSet()


def start_over_in_children(one: StartsOver) -> None:
    """Call its `after_fork` in every forked child, as long as it exists."""
    _IN_USE.add(one)


def _start_over() -> None:
    for one in list(_IN_USE):
        one.after_fork()


os.register_at_fork(after_in_child=_start_over)
