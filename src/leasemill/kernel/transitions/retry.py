"""Policies: which one holds, how long to wait, when it is enough. Rules F1 to F5 and I5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leasemill.kernel.model import NEVER, TIMEOUT_LEASES, Job, JobSpec, Policy, Terms

DEFAULTS: Final = Terms()
NO_POLICY: Final = Policy()
LONGEST_EXPONENT: Final = 49
"""The exponent from which every base above 0 exceeds the longest cap there may be."""


def settle(job: Policy | None, queue: Policy | None, kind: Policy | None) -> Terms:
    """I5: the terms of an execution; job before queue before kind before the defaults."""
    if job is None and queue is None and kind is None:
        return DEFAULTS
    layers = [policy for policy in (job, queue, kind) if policy is not None]
    asked = {
        name: value
        for policy in reversed(layers)
        for name in Policy.__struct_fields__
        if (value := getattr(policy, name)) is not None
    }
    lease_ttl_us = asked.get("lease_ttl_us", DEFAULTS.lease_ttl_us)
    asked.setdefault("timeout_us", TIMEOUT_LEASES * lease_ttl_us)
    return Terms(**asked)


def settle_claimed(job: JobSpec, queue: Policy | None, kinds: Mapping[str, Policy]) -> Terms:
    return settle(job.policy, queue, kinds.get(job.kind))


def settle_acquired(job: Policy | None, queue: Policy | None) -> Terms:
    """N9: an acquired lease expires only where a policy sets its length."""
    terms = settle(job, queue, None)
    if any(policy is not None and policy.lease_ttl_us is not None for policy in (job, queue)):
        return terms
    return Terms(
        max_retries=terms.max_retries,
        lease_ttl_us=NEVER,
        timeout_us=NEVER,
        max_expirations=terms.max_expirations,
        backoff_base_us=terms.backoff_base_us,
        backoff_cap_us=terms.backoff_cap_us,
        on_failure=terms.on_failure,
    )


def backoff_us(terms: Terms, retries: int, jitter: float) -> int:
    """F1: random(0, min(base * 2^retries, cap)); `jitter` is the random number in [0, 1)."""
    ceiling = min(terms.backoff_base_us << min(retries, LONGEST_EXPONENT), terms.backoff_cap_us)
    return int(ceiling * jitter)


def exhausted(job: Job, terms: Terms) -> bool:
    """F2: no retry is left."""
    return job.retries >= terms.max_retries


def quarantined(job: Job, terms: Terms) -> bool:
    """F4: the expiration about to be recorded is the last this job may have."""
    return job.expirations + 1 >= terms.max_expirations
