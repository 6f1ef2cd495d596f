"""A set of whole numbers held as ranges: numbers that come one after another cost nothing more."""

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

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """How many ranges there are (not how many numbers)."""
        return len(self._firsts)

    def add(self, number: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(firsts, number) - 1
        if index >= 0 and number <= lasts[index]:
            return
        joins_left = index >= 0 and lasts[index] == number - 1
        joins_right = index + 1 < len(firsts) and firsts[index + 1] == number + 1
        if joins_left and joins_right:
            lasts[index] = lasts[index + 1]
            del firsts[index + 1], lasts[index + 1]
        elif joins_left:
            lasts[index] = number
        elif joins_right:
            firsts[index + 1] = number
        else:
            firsts.insert(index + 1, number)
            lasts.insert(index + 1, number)

    def discard(self, number: int) -> None:
        if number not in self:
            return
        firsts, lasts = self._firsts, self._lasts
        index = bisect_right(firsts, number) - 1
        first, last = firsts[index], lasts[index]
        kept = [(a, b) for a, b in ((first, number - 1), (number + 1, last)) if a <= b]
        firsts[index : index + 1] = [a for a, _ in kept]
        lasts[index : index + 1] = [b for _, b in kept]
