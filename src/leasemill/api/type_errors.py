"""Why a value, or an annotation, cannot be used (yet). Callers turn it into the refusal their users see."""

from __future__ import annotations

import re
from typing import Final

from leasemill.errors import Invalid


class Unfit(ValueError):
    """A value does not fit its declared type."""

    def __init__(self, at: str, text: str) -> None:
        super().__init__(f"at {at}: {text}" if at else text)
        self.at = at
        """Where in the value, as `items[2].price`; empty for the value itself."""
        self.text = text


class Unresolved(Invalid):
    """An annotation names something that is not defined (yet)."""


_MISSING: Final = re.compile(r"^Object missing required field `(.*)`$")
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`$")


def in_our_words(text: str, what: str = "field") -> str:
    """What msgspec says of an object, in the words of a reader who knows arguments and not msgspec."""
    return _UNKNOWN.sub(rf"unknown {what} '\1'", _MISSING.sub(rf"missing {what} '\1'", text))
