"""How a chain hands a result on: the payload of a job when the one before it has succeeded."""

from __future__ import annotations

from msgspec import json

from leasemill.kernel.model import ChainedJob


def payload_after(chained: ChainedJob, result: bytes | None) -> bytes:
    """The payload with the result in it, under the name the job gave to it; as it is if it gave none."""
    if chained.result_name is None:
        return chained.payload
    given = chained.payload.strip()[1:-1].strip()
    taken = json.encode(chained.result_name) + b":" + (result or b"null")
    return b"{" + given + (b"," if given else b"") + taken + b"}"
