"""Payloads, results and headers as they may be shown and logged: values under keys that look like secrets are left out.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from leasemill.errors import Invalid

SECRET_KEYS: Final = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "api_?key",
    "private_?key",
    "access_?key",
    "credential",
    "cookie",
    "session_?id",
    "card_?number",
    "cvv|cvc",
)
"""Regular expressions, found anywhere in a key; `-` and `_` are the same, and so are cases."""
REDACTED: Final = "(redacted)"
DEEPEST: Final = 50
SHOWN_CHARACTERS: Final = 64 * 1024


class Redaction:
    """The rule by which values are left out."""

    def __init__(self, keys: Sequence[str] = SECRET_KEYS) -> None:
        for key in keys:
            _check(key)
        self._pattern = re.compile("|".join(f"(?:{key})" for key in keys) or r"(?!)", re.IGNORECASE)

    def hides(self, key: str) -> bool:
        return self._pattern.search(key.replace("-", "_")) is not None

    def document(self, content: bytes) -> bytes:
        """JSON, indented, without the values that are hidden; anything else is returned unchanged."""
        try:
            value = msgspec.json.decode(content)
        except msgspec.DecodeError:
            return content
        return msgspec.json.format(msgspec.json.encode(self._shown(value, 0)), indent=2)

    def text(self, content: bytes) -> tuple[str, bool]:
        """The same as text, and whether it was cut."""
        text = self.document(content).decode(errors="replace")
        return text[:SHOWN_CHARACTERS], len(text) > SHOWN_CHARACTERS

    def _shown(self, value: Any, depth: int) -> Any:
        if depth > DEEPEST:
            return REDACTED
        if isinstance(value, dict):
            return {
                key: REDACTED if self.hides(key) and inner is not None else self._shown(inner, depth + 1)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._shown(inner, depth + 1) for inner in value]
        return value


def _check(key: str) -> None:
    """An empty one would hide everything."""
    try:
        re.compile(key)
    except re.error as error:
        raise Invalid(f"redact {key!r} is not a regular expression: {error}") from None
    if not key:
        raise Invalid("redact: name a field; an empty text is found in every key")
