"""The policy of a kind of job, as users write it: leases, timeouts, durations and the executor.

The first three become the kernel's `Policy`.

Durations are seconds or timedeltas here and whole microseconds below. What is out of bounds is refused where it is
written, with a message that says what to write.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Final, Literal, TypeAlias, get_args

from msgspec.structs import replace

from leasemill.errors import Invalid
from leasemill.kernel.bounds import LONGEST_US, check_policy
from leasemill.kernel.model import SECOND, OnFailure, Policy
from leasemill.kernel.transitions.retry import settle

Executor: TypeAlias = Literal["thread", "process"]
"""thread: in the worker's process, `def` in a thread and `async def` on the event loop. process: in another process,
which the worker can kill."""


def check_executor(executor: object) -> None:
    if executor not in get_args(Executor):
        raise Invalid(f"executor is {executor!r}; write 'thread' or 'process'")


def is_on_event_loop() -> bool:
    """Return True if the calling code runs on an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""

LeasePreset: TypeAlias = Literal["default", "heavy", "external"]
OnFailureChoice: TypeAlias = Literal["continue", "block"]

LEASES_S: Final[dict[LeasePreset, float]] = {"default": 30, "heavy": 60, "external": 120}
"""Leases by name; `external` is for handlers that wait for other systems."""

ReaperPreset: TypeAlias = Literal["default", "high-volume", "low-volume"]
REAPER_INTERVALS_S: Final[dict[ReaperPreset, float]] = {"default": 10, "high-volume": 5, "low-volume": 30}

"""Reaper intervals by name: for workers that see many short jobs, or few long ones."""

SHORTEST_LEASE_US: Final = 1_000
BEYOND_S: Final = 10**15
"""Out of bounds by far, and few enough that no number overflows."""


def microseconds(what: str, duration: Duration, *, least_us: int = 0) -> int:
    """A duration in whole microseconds, refused if it is not a duration or out of bounds."""
    if isinstance(duration, timedelta):
        us = duration // timedelta(microseconds=1)
    elif not _is_number(duration):
        raise Invalid(f"{what} is {duration!r}; write seconds or a timedelta")
    else:
        us = round(max(-BEYOND_S, min(duration, BEYOND_S)) * SECOND)
    if us < least_us:
        limit = {0: "not be negative", 1: "be more than 0 s"}.get(least_us, f"be at least {least_us / SECOND:g} s")
        raise Invalid(f"{what} is {us / SECOND:g} s; it must {limit}")
    if us > LONGEST_US:
        shown = f"{us / SECOND:g} s" if us < BEYOND_S * SECOND else "far too long"
        raise Invalid(f"{what} is {shown}; it must be at most {LONGEST_US // SECOND} s")
    return us


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """An int and not a bool: callers without type checks may pass either."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_backoff(what: str, policy: Policy) -> None:
    """F6, with the defaults filled in: a base above its cap is refused."""
    terms = settle(None, None, policy)
    if terms.backoff_base_us > terms.backoff_cap_us:
        raise Invalid(
            f"{what}: the back-off base is {terms.backoff_base_us / SECOND:g} s and its cap "
            f"{terms.backoff_cap_us / SECOND:g} s; make the cap at least the base"
        )


def run_policy(
    asked: Policy,
    lease: Duration | LeasePreset | None,
    timeout: Duration | None,
    on_failure: OnFailureChoice | OnFailure | None = None,
    max_expirations: int | None = None,
) -> Policy:
    """Return the policy of a declaration or of one enqueue: its retries, lease and timeout."""
    policy = replace(
        asked,
        lease_ttl_us=_lease_us(lease),
        timeout_us=None if timeout is None else microseconds("timeout", timeout, least_us=1),
        max_expirations=max_expirations,
        on_failure=_on_failure(on_failure),
    )
    check_policy(policy)
    return policy


def reaper_s(interval: Duration | ReaperPreset | None) -> float | None:
    """A reaper's interval in seconds; None: derived from the leases."""
    if interval is None:
        return None
    if isinstance(interval, str):
        if interval not in REAPER_INTERVALS_S:
            names = ", ".join(REAPER_INTERVALS_S)
            raise Invalid(f"reaper interval {interval!r} is not one of {names}; write one of them, or seconds")
        interval = REAPER_INTERVALS_S[interval]
    return microseconds("reaper interval", interval) / SECOND


def _lease_us(lease: Duration | LeasePreset | None) -> int | None:
    if lease is None:
        return None
    if isinstance(lease, str):
        if lease not in LEASES_S:
            raise Invalid(f"lease {lease!r} is not one of {', '.join(LEASES_S)}; write one of them, or seconds")
        lease = LEASES_S[lease]
    return microseconds("lease", lease, least_us=SHORTEST_LEASE_US)


def _on_failure(choice: OnFailureChoice | OnFailure | None) -> OnFailure | None:
    if choice is None:
        return None
    try:
        return OnFailure(choice)
    except ValueError:
        raise Invalid(f"on_failure is {choice!r}; write 'continue' or 'block'") from None
