"""Leases that a server found expired, reported to a worker with the answer to one of its own calls: in a header.

A worker that listens for expiries says so in its request. Each expiry is reported once, to one of those who listen.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

from msgspec.json import Decoder, Encoder

from leasemill.kernel.commands import Expiration

LISTENS: Final = "leasemill-listens"
EXPIRED: Final = "leasemill-expired"
MOST: Final = 50
"""In one answer: headers must stay small."""

_encode: Final = Encoder().encode
_decode: Final = Decoder(list[Expiration]).decode


def written(expired: Sequence[Expiration]) -> bytes:
    return b64encode(_encode(list(expired)))


def read(header: str) -> list[Expiration]:
    return _decode(b64decode(header))
