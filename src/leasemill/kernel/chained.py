"""From a template to a job: the next of a chain, and the callbacks of a group."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from msgspec import json

from leasemill.kernel.model import ChainedJob, JobSpec, Rules

LONGEST_STEM: Final = 100


def payload_after(chained: ChainedJob, result: bytes | None) -> bytes:
    """The payload with the result under the name that the job gave it; unchanged if it gave none."""
    if chained.result_name is None:
        return chained.payload
    given = chained.payload.strip()[1:-1].strip()
    taken = json.encode(chained.result_name) + b":" + (result or b"null")
    return b"{" + given + (b"," if given else b"") + taken + b"}"


def chained_spec(job_id: str, chained: ChainedJob, payload: bytes | None = None, rules: Rules | None = None) -> JobSpec:
    """The job that a template stands for."""
    return JobSpec(
        job_id,
        chained.queue,
        chained.kind,
        chained.payload if payload is None else payload,
        chained.lane,
        chained.priority,
        delay_us=chained.delay_us,
        policy=chained.policy,
        headers=chained.headers,
        rules=rules,
    )


def rules_of_chained(chained: ChainedJob, group: str | None, rest: tuple[ChainedJob, ...]) -> Rules | None:
    if chained.unique is None and not chained.limits and group is None and not rest:
        return None
    return Rules(chained.unique, chained.limits, group, rest)


def then_id(stem: str) -> str:
    """I6: the id of the job that follows the success of a job or of a group."""
    return derived_id(stem, "then")


def end_id(group_id: str) -> str:
    """I6: the id of the job that follows the end of a group."""
    return derived_id(group_id, "end")


def derived_id(stem: str, name: str) -> str:
    """An id that follows from another. A long one is cut to a digest, so that a job that follows up on itself for ever
    never runs out of room."""
    if len(stem) > LONGEST_STEM:
        stem = blake2b(stem.encode(), digest_size=16).hexdigest()
    return f"{stem}/{name}"
