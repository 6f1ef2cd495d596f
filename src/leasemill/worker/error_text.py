"""An exception as text for the record: what it was, what caused it, and where each was raised.

The first line names the exception and its causes: it is what lists show and what failures are grouped by. Then come,
for the exception and for each cause, the rest of its message and its deepest frames. At most 8 KiB, shared so that the
root cause is always there. What must never happen here: an exception. Classes of users are asked for their text.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

from leasemill.api.outcomes import Outcome

ERROR_BYTES: Final = 8 * 1024
FIRST_LINE_BYTES: Final = 1024
HEADLINE_LENGTH: Final = 200
"""How much of a cause is shown in the first line."""
FRAMES: Final = 8
CAUSE_FRAMES: Final = 4
LINKED_SHOWN: Final = 7
"""Causes and sub-exceptions that are shown; of more, the first and the latest."""
LINKED_IN_FIRST_LINE: Final = 3
LINKED_WALKED: Final = 100
SUB_EXCEPTIONS: Final = 3

_Link = tuple[str, BaseException]


def error_text(error: BaseException) -> str:
    linked = list(_linked(error, {id(error)}))[:LINKED_WALKED]
    first = _first_line(error, linked)
    sections = [_section("", error, FRAMES)]
    sections += [_section(f"{relation} ", cause, CAUSE_FRAMES) for relation, cause in _ends_of(linked, LINKED_SHOWN)]
    left = ERROR_BYTES - len(first.encode())
    parts = [first]
    for position, (head, frames) in enumerate(sections):
        part = _clipped(head, frames, left // (len(sections) - position) - 1)
        if part:
            parts.append(part)
            left -= len(part.encode()) + 1
    return fitting("\n".join(parts))


def fitting(text: str) -> str:
    """Text that every store takes: encodable, without zeros, at most 8 KiB."""
    return _cut(_encodable(text), ERROR_BYTES)


def message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 (the user's `__str__`)
        return f"<its __str__ raised {type(broken).__name__}>"


# Causes ---------------------------------------------------------------------------------------------------------


def _linked(error: BaseException, seen: set[int]) -> Iterator[_Link]:
    """What an exception is about, nearest first: its cause or context, or its sub-exceptions, and theirs."""
    links: list[_Link] = []
    if isinstance(error, BaseExceptionGroup):
        links += [("sub-exception", one) for one in error.exceptions[:SUB_EXCEPTIONS]]
    if error.__cause__ is not None:
        links.append(("caused by", error.__cause__))
    elif error.__context__ is not None and not error.__suppress_context__:
        links.append(("while handling", error.__context__))
    for relation, other in links:
        if id(other) not in seen and len(seen) < LINKED_WALKED:
            seen.add(id(other))
            yield relation, other
            yield from _linked(other, seen)


def _ends_of(linked: list[_Link], most: int) -> list[_Link]:
    """The first ones and the last, which is the root cause."""
    return linked if len(linked) <= most else [*linked[: most - 1], linked[-1]]


# Text -----------------------------------------------------------------------------------------------------------


def _first_line(error: BaseException, linked: list[_Link]) -> str:
    line = _headline(error).partition("\n")[0]
    shown = [
        f"{relation} {_encodable(_headline(other)).partition(chr(10))[0][:HEADLINE_LENGTH]}"
        for relation, other in _ends_of(linked, LINKED_IN_FIRST_LINE)
    ]
    causes = f" ({'; '.join(shown)})" if shown else ""
    room = max(FIRST_LINE_BYTES - len(causes.encode()), FIRST_LINE_BYTES // 2)
    return _cut(_cut(_encodable(line), room) + causes, 2 * FIRST_LINE_BYTES)


def _headline(error: BaseException) -> str:
    kind = type(error)
    is_plain = isinstance(error, Outcome) or kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
    text = message(error)
    return f"{name}: {text}" if text else name


def _section(relation: str, error: BaseException, frames: int) -> tuple[str, list[str]]:
    """The message, but for what the first line has, and the deepest frames, deepest last."""
    headline = _headline(error)
    line, _, rest = headline.partition("\n")
    is_cut = len(line) > FIRST_LINE_BYTES // 4
    head = f"{relation}{headline}" if relation or is_cut else rest
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        head = "\n".join([head, *(one for one in notes if isinstance(one, str))]).strip("\n")
    if isinstance(error, Outcome):
        return _encodable(head), []  # raised on purpose: where is of no interest
    found = traceback.extract_tb(error.__traceback__, limit=-frames)
    return _encodable(head), [_encodable(one.rstrip("\n")) for one in traceback.format_list(found)]


def _clipped(head: str, frames: list[str], most: int) -> str:
    head = _cut(head, max(most // 2, most - sum(len(one.encode()) + 1 for one in frames)))
    left = most - len(head.encode())
    shown: list[str] = []
    for frame in reversed(frames):  # the deepest are where it happened
        left -= len(frame.encode()) + 1
        if left < 0:
            break
        shown.append(frame)
    return "\n".join([*([head] if head else []), *reversed(shown)])


def _encodable(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _cut(text: str, most: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    return encoded[: max(0, most - 4)].decode("utf-8", "ignore") + " ..."
