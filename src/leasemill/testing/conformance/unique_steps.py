"""Jobs with unique keys, and what can become of the one that holds a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasemill.kernel.commands import (
    Enqueued,
    Followup,
    Merged,
)
from leasemill.kernel.model import SECOND, JobSpec, JobState, Policy, Rules, UniqueKey, UniqueUntil
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    acked,
    cancelled,
    claim_one,
    committed,
    died,
    enqueue,
    expired,
    failed_for_good,
    nacked,
    purge,
    released,
    spec,
    started,
    state_of,
)

KEEP_US = 3_600 * SECOND


def unique(
    job_id: str, key: str = "key", until: UniqueUntil = UniqueUntil.ENDED, keep_us: int = 0, **fields: Any
) -> JobSpec:
    return spec(job_id, rules=Rules(UniqueKey(key, until, keep_us)), **fields)


def until_started(job_id: str, key: str = "key", **fields: Any) -> JobSpec:
    return unique(job_id, key, UniqueUntil.STARTED, **fields)


def follow_up(job: JobSpec) -> Followup:
    return Followup(job.queue, job.kind, job.payload, job.lane, delay_us=job.delay_us, rules=job.rules)


def enqueued(harness: Harness, job: JobSpec) -> None:
    assert enqueue(harness, job) == Enqueued(job.id)


def merged_with(harness: Harness, job: JobSpec) -> str:
    """The job that stands for this one, which was not made."""
    outcome = enqueue(harness, job)
    assert isinstance(outcome, Merged), outcome
    assert harness.store.job(job.id) is None
    return outcome.job_id


def fails_and_waits(harness: Harness) -> None:
    nacked(harness, claim_one(harness), delay_us=60 * SECOND)


def was_claimed(harness: Harness) -> None:
    claim_one(harness)


def was_started(harness: Harness) -> None:
    started(harness, claim_one(harness))


def was_committed(harness: Harness) -> None:
    committed(harness, claim_one(harness))


def lease_expired(harness: Harness) -> None:
    expired(harness, claim_one(harness))


def holder_died(harness: Harness) -> None:
    died(harness, claim_one(harness))


def was_released(harness: Harness) -> None:
    released(harness, claim_one(harness), 60 * SECOND)


def succeeded(harness: Harness) -> None:
    acked(harness, claim_one(harness))


def failed(harness: Harness) -> None:
    failed_for_good(harness, claim_one(harness))


def quarantined(harness: Harness) -> None:
    lease = claim_one(harness)
    started(harness, lease)
    expired(harness, lease)
    assert state_of(harness, "first") is JobState.DEAD


def quarantined_by_deaths(harness: Harness) -> None:
    lease = claim_one(harness)
    started(harness, lease)
    died(harness, lease)
    assert state_of(harness, "first") is JobState.DEAD


def was_cancelled(harness: Harness) -> None:
    cancelled(harness, "first")


def was_cancelled_while_it_ran(harness: Harness) -> None:
    claim_one(harness)
    cancelled(harness, "first")


def was_purged(harness: Harness) -> None:
    cancelled(harness, "first")
    purge(harness, "first")


def was_pruned(harness: Harness) -> None:
    acked(harness, claim_one(harness))
    assert harness.store.prune(0, keep=0) == 1


UNFINISHED: dict[str, Callable[[Harness], None]] = {
    "waits": lambda _: None,
    "claimed": was_claimed,
    "started": was_started,
    "committed": was_committed,
    "waits for a retry": fails_and_waits,
    "lease expired": lease_expired,
    "holder died": holder_died,
    "released": was_released,
}
ENDED: dict[str, Callable[[Harness], None]] = {
    "succeeded": succeeded,
    "failed": failed,
    "quarantined": quarantined,
    "quarantined by deaths": quarantined_by_deaths,
    "cancelled": was_cancelled,
    "cancelled while it ran": was_cancelled_while_it_ran,
    "purged": was_purged,
    "pruned": was_pruned,
}
QUARANTINES = Policy(max_expirations=1)
