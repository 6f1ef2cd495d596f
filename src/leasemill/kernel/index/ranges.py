"""A set of offsets stored as ranges: consecutive offsets cost nothing more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Disjoint, ascending, inclusive ranges with a gap between each two."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        pairs = list(ranges)
        self._firsts = [first for first, _ in pairs]
        self._lasts = [last for _, last in pairs]

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._firsts, offset) - 1
        return index >= 0 and offset <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges (not of offsets)."""
        return len(self._firsts)

    def add(self, offset: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(firsts, offset) - 1
        if index >= 0 and offset <= lasts[index]:
            return
        joins_left = index >= 0 and lasts[index] == offset - 1
        joins_right = index + 1 < len(firsts) and firsts[index + 1] == offset + 1
        if joins_left and joins_right:
            lasts[index] = lasts[index + 1]
            del firsts[index + 1], lasts[index + 1]
        elif joins_left:
            lasts[index] = offset
        elif joins_right:
            firsts[index + 1] = offset
        else:
            firsts.insert(index + 1, offset)
            lasts.insert(index + 1, offset)

    def discard(self, offset: int) -> None:
        if offset not in self:
            return
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(firsts, offset) - 1
        first, last = firsts[index], lasts[index]
        rest = [(a, b) for a, b in ((first, offset - 1), (offset + 1, last)) if a <= b]
        firsts[index : index + 1] = [a for a, _ in rest]
        lasts[index : index + 1] = [b for _, b in rest]
