"""Ids, tokens, request ids and jitter that a client may leave to the server.

With an `Idempotency-Key` they follow from it where a repeat must find them again: a call that is sent twice with one
key enqueues once, and claims the same jobs.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from msgspec.structs import replace

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS, TEXT_LENGTH
from leasemill.store.system import Entropy
from leasemill.wire.shapes import UNDRAWN_JITTER

KEY_HEADER: Final = "idempotency-key"


def fill_in(command: c.Command[Any], entropy: Entropy, principal: str, key: str | None) -> c.Command[Any]:
    """Return the command with everything that its caller left out; a key counts for its principal alone."""
    if key is not None and not 0 < len(key) <= TEXT_LENGTH:
        raise Invalid(
            f"Idempotency-Key has {len(key)} characters; give it 1 to {TEXT_LENGTH}",
            field=KEY_HEADER,
            limit=f"1 to {TEXT_LENGTH}",
        )
    owned = None if key is None else f"{principal} {key}"
    match command:
        case c.Enqueue() if any(not job.id for job in command.jobs):
            jobs = [
                job if job.id else replace(job, id=_id(entropy, owned, number))
                for number, job in enumerate(command.jobs)
            ]
            return replace(command, jobs=jobs)
        case c.Claim():
            return _fill_in_claim(command, entropy, owned)
        case c.Nack() if any(report.jitter == UNDRAWN_JITTER for report in command.reports):
            reports = [
                replace(report, jitter=entropy.jitter()) if report.jitter == UNDRAWN_JITTER else report
                for report in command.reports
            ]
            return replace(command, reports=reports)
        case _:
            return command


def _fill_in_claim(command: c.Claim, entropy: Entropy, key: str | None) -> c.Claim:
    if command.tokens and command.request_id is not None:
        return command
    *tokens, request_id = entropy.tokens(max(0, min(command.limit, BATCH_ITEMS)) + 1)
    return replace(
        command, tokens=command.tokens or tokens, request_id=command.request_id or (key and _digest(key)) or request_id
    )


def _id(entropy: Entropy, key: str | None, number: int) -> str:
    return entropy.new_id() if key is None else f"{_digest(key)}-{number}"


def _digest(key: str) -> str:
    """Return a printable digest, whatever the key is."""
    return blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
