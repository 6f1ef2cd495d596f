"""The specification of a job: its policy, and the rules that bind it to others."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

MILLISECOND: Final = 1_000

SECOND: Final = 1_000_000

TIMEOUT_LEASES: Final = 3
"""The default timeout, in leases."""

QUEUE_LIMIT: Final = "queue:"
"""The prefix of the name of a queue's own limit; the name of the queue follows."""


class OnFailure(StrEnum):
    """The choice of what a lane does when its head ends FAILED or is quarantined."""

    CONTINUE = "continue"
    BLOCK = "block"


class Policy(Struct, frozen=True, array_like=True, gc=False):
    """What a job, a queue or a kind asks for; `None` leaves the choice to the next in precedence."""

    max_retries: int | None = None
    lease_ttl_us: int | None = None
    timeout_us: int | None = None
    max_expirations: int | None = None
    backoff_base_us: int | None = None
    backoff_cap_us: int | None = None
    on_failure: OnFailure | None = None


class Terms(Struct, frozen=True, array_like=True, gc=False):
    """The policy of one execution, settled at claim: every field has a value."""

    max_retries: int = 3
    lease_ttl_us: int = 30 * SECOND
    timeout_us: int = TIMEOUT_LEASES * lease_ttl_us
    max_expirations: int = 5
    backoff_base_us: int = 500 * MILLISECOND
    backoff_cap_us: int = 30 * SECOND
    on_failure: OnFailure = OnFailure.CONTINUE


class UniqueUntil(StrEnum):
    """The state until which a unique job holds its key."""

    ENDED = "ended"
    STARTED = "started"


class UniqueKey(Struct, frozen=True, array_like=True, gc=False):
    """While a job holds this key, no other job is made for it (U1).

    `keep_us`: it is held at least this long from the enqueue, whatever happens to the job. `at_most_us`: the job is
    debounced: until it is claimed, an enqueue with its key replaces its payload and restarts its delay, which ends no
    later than this after the first enqueue. `is_trailing`: a call while the key is kept makes one more job, due when
    that time ends.
    """

    key: str
    until: UniqueUntil = UniqueUntil.ENDED
    keep_us: int = 0
    at_most_us: int | None = None
    is_trailing: bool = False


class LimitUse(Struct, frozen=True, array_like=True, gc=False):
    """A limit that a job is under: its name and, if it counts for each key, the key."""

    name: str
    key: str | None = None


class LimitTerms(Struct, frozen=True, array_like=True, gc=False):
    """`places`: the most leases at a time; `rate`: the most grants per `per_us`, `burst` at once. None: unlimited."""

    places: int | None = None
    rate: int | None = None
    per_us: int | None = None
    burst: int | None = None


class ChainedJob(Struct, frozen=True, array_like=True, gc=False):
    """A job that the success of the one before it enqueues.

    `result_name`: the argument that is the result of the job before; the payload, a JSON object, does not have it.
    """

    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    delay_us: int = 0
    policy: Policy | None = None
    headers: dict[str, str] | None = None
    unique: UniqueKey | None = None
    limits: tuple[LimitUse, ...] = ()
    result_name: str | None = None


class Rules(Struct, frozen=True, array_like=True, gc=False):
    """The rules that bind a job to others; most jobs have none."""

    unique: UniqueKey | None = None
    limits: tuple[LimitUse, ...] = ()
    group: str | None = None
    chain: tuple[ChainedJob, ...] = ()


class JobSpec(Struct, frozen=True, array_like=True, gc=False):
    """The job that a caller asks for. Headers travel with a job and are not its content.

    Written once; but a job that is replaced before its first claim (U8, U10) has the latest payload and headers, and
    its `run_at` says when it is due.
    """

    id: str
    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    run_at: int | None = None
    delay_us: int = 0
    policy: Policy | None = None
    offset: int | None = None
    headers: dict[str, str] | None = None
    rules: Rules | None = None
